// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/index.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::safetensors {
namespace {

// The kernel's own limit on a path.
constexpr std::size_t kMaxPathBytes = 4096;
// The largest models have some 100,000 tensors, each with a line in the index.
constexpr std::uint64_t kMaxIndexBytes = 256U << 20U;

constexpr std::string_view kShardingKey = "DCP_SHARDING_INFO";
constexpr std::string_view kVersionKey = "DCP_VERSION";
constexpr std::string_view kVersion = "1.0";
constexpr std::string_view kOffsetsKey = "saved_offsets";

Error index_error(const std::string& symptom) {
  return Error(ErrorCode::kIndex, "weight_map: " + symptom);
}

// Throws kIndex unless the entry names a file with this suffix inside the folder.  Links are
// refused when the file is opened (Directory::open_member).
void check_entry(const IndexEntry& entry, std::string_view suffix) {
  check_tensor_name(entry.tensor);
  const std::string& file = entry.file;
  const auto refuse = [&](std::string_view why) {
    return index_error(cat("tensor ", quote(entry.tensor), ": file ", quote(file), " ", why));
  };
  if (!file.ends_with(suffix)) throw refuse(cat("is not a ", suffix, " file"));
  if (file.size() >= kMaxPathBytes)
    throw refuse(cat("has a name of ", file.size(), " bytes, at most 4095"));
  if (file.find('\0') != std::string::npos) throw refuse("has a NUL byte in its name");
  if (!is_utf8(file)) throw refuse("has a name that is not UTF-8");
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find('/', begin), file.size());
    const std::string_view part = std::string_view(file).substr(begin, end - begin);
    if (part == ".." || (part.empty() && begin == 0))
      throw refuse("lies outside the folder of the index");
    if (part.empty() || part == ".") throw refuse("has a name with an empty component");
    begin = end + 1;
  }
}

std::optional<std::uint64_t> parse_total_size(const Json& root) {
  const Json* metadata = root.find("metadata");
  if (metadata == nullptr || metadata->is_null()) return std::nullopt;
  if (metadata->as_object() == nullptr) {
    throw Error(ErrorCode::kIndex,
                cat("metadata is ", json_kind(*metadata), ", expected an object"));
  }
  const Json* size = metadata->find("total_size");
  if (size == nullptr) return std::nullopt;
  if (const std::int64_t* bytes = size->as_int(); bytes != nullptr && *bytes >= 0) {
    return static_cast<std::uint64_t>(*bytes);
  }
  // Writers that divide to get the size write a float, such as 40.0.
  if (const double* bytes = std::get_if<double>(&size->storage());
      bytes != nullptr && *bytes >= 0 && *bytes <= 0x1p53 &&
      *bytes == static_cast<double>(static_cast<std::uint64_t>(*bytes))) {
    return static_cast<std::uint64_t>(*bytes);
  }
  throw Error(ErrorCode::kIndex, cat("metadata: total_size is ", quote(to_text(*size), 40),
                                     ", expected an integer >= 0"));
}

Error sharding_error(const std::string& symptom) {
  return Error(ErrorCode::kStMetadata, cat("__metadata__: ", kShardingKey, ": ", symptom));
}

// Returns the offsets of one tensor from {"saved_offsets": [2, 0]}.
std::vector<std::int64_t> parse_offsets(const Tensor& tensor, const Json& info) {
  const auto refuse = [&](const std::string& symptom) {
    return sharding_error(cat("tensor ", quote(tensor.name), ": ", symptom));
  };
  const Json* list = info.find(kOffsetsKey);
  if (list == nullptr) throw refuse(cat("has no ", kOffsetsKey));
  const Json::Array* items = list->as_array();
  if (items == nullptr)
    throw refuse(cat(kOffsetsKey, " is ", json_kind(*list), ", expected an array"));
  if (items->size() != tensor.shape.size()) {
    throw refuse(cat("has ", items->size(), " offsets, but ", tensor.shape.size(), " dimensions"));
  }
  std::vector<std::int64_t> offsets;
  offsets.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::int64_t* offset = (*items)[i].as_int();
    if (offset == nullptr || *offset < 0) {
      throw refuse(cat("has offset ", quote(to_text((*items)[i]), 40),
                       ", expected an integer from 0 to 2^63 - 1"));
    }
    if (*offset > INT64_MAX - tensor.shape[i]) {
      throw refuse(
          cat("offset ", *offset, " and size ", tensor.shape[i], " make more than 2^63 - 1"));
    }
    offsets.push_back(*offset);
  }
  return offsets;
}

}  // namespace

FileIndex parse_index(std::string_view text, std::string_view suffix) {
  // A tensor with two files is an error in the index, even though JSON allows duplicate names.
  const Json root = parse_json(text, {.duplicate_code = ErrorCode::kIndex});
  if (root.as_object() == nullptr) {
    throw Error(ErrorCode::kIndex, cat("the index is ", json_kind(root), ", expected an object"));
  }
  FileIndex index;
  index.total_size = parse_total_size(root);
  const Json* map = root.find("weight_map");
  if (map == nullptr) throw Error(ErrorCode::kIndex, "the index has no weight_map");
  const Json::Object* members = map->as_object();
  if (members == nullptr)
    throw Error(ErrorCode::kIndex, cat("weight_map is ", json_kind(*map), ", expected an object"));
  index.weight_map.reserve(members->size());
  for (const auto& [tensor, file] : *members) {
    const std::string* name = file.as_string();
    if (name == nullptr) {
      throw index_error(
          cat("tensor ", quote(tensor), ": its file is ", json_kind(file), ", expected a string"));
    }
    index.weight_map.push_back({tensor, *name});
    check_entry(index.weight_map.back(), suffix);
  }
  return index;
}

FileIndex read_index(const Folder& folder, const std::string& name, std::string_view suffix) {
  const auto file = folder.open_member(name);
  return in_context(file->name(),
                    [&] { return parse_index(read_text(*file, kMaxIndexBytes), suffix); });
}

std::string make_index(const FileIndex& index) {
  Json::Object map;
  map.reserve(index.weight_map.size());
  std::unordered_set<std::string_view> seen;
  for (const IndexEntry& entry : index.weight_map) {
    check_entry(entry, ".safetensors");
    if (!seen.insert(entry.tensor).second)
      throw index_error(cat("tensor ", quote(entry.tensor), " occurs twice"));
    map.emplace_back(entry.tensor, entry.file);
  }
  Json::Object metadata;
  if (index.total_size) metadata.emplace_back("total_size", *index.total_size);
  Json::Object root;
  root.emplace_back("metadata", std::move(metadata));
  root.emplace_back("weight_map", std::move(map));
  return to_text(std::move(root), 2);
}

std::vector<std::string> files_of(const FileIndex& index) {
  std::vector<std::string> files;
  std::unordered_set<std::string_view> seen;
  for (const IndexEntry& entry : index.weight_map) {
    if (seen.insert(entry.file).second) files.push_back(entry.file);
  }
  return files;
}

void check_index(const FileIndex& index, std::span<const FileHeader> files) {
  std::unordered_map<std::string_view, std::string_view> owner;
  owner.reserve(index.weight_map.size());
  for (const IndexEntry& entry : index.weight_map) owner.emplace(entry.tensor, entry.file);
  std::unordered_set<std::string_view> found;
  found.reserve(owner.size());
  for (const FileHeader& file : files) {
    for (const Tensor& tensor : file.header->tensors) {
      const auto entry = owner.find(tensor.name);
      if (entry == owner.end()) {
        throw index_error(cat("tensor ", quote(tensor.name), " lies in ", quote(file.name),
                              ", but is not in the map"));
      }
      if (entry->second != file.name) {
        throw index_error(cat("tensor ", quote(tensor.name), " lies in ", quote(file.name),
                              ", but the map says ", quote(entry->second)));
      }
      found.insert(tensor.name);
    }
  }
  for (const IndexEntry& entry : index.weight_map) {
    if (found.contains(entry.tensor)) continue;
    throw index_error(cat("tensor ", quote(entry.tensor), " is missing from ", quote(entry.file)));
  }
}

std::optional<std::vector<SavedOffsets>> saved_offsets(const Header& header) {
  const auto text = std::ranges::find_if(
      header.metadata, [](const auto& member) { return member.first == kShardingKey; });
  if (text == header.metadata.end()) return std::nullopt;
  Json root;
  try {
    root = parse_json(text->second);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kJson) throw sharding_error(e.what());
    throw;
  }
  const Json::Object* members = root.as_object();
  if (members == nullptr) throw sharding_error(cat("is ", json_kind(root), ", expected an object"));

  std::unordered_map<std::string_view, std::size_t> position;
  position.reserve(header.tensors.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i)
    position.emplace(header.tensors[i].name, i);
  std::vector<SavedOffsets> result(header.tensors.size());
  for (const auto& [name, info] : *members) {
    const auto found = position.find(name);
    if (found == position.end())
      throw sharding_error(cat("tensor ", quote(name), " is not in the file"));
    result[found->second] = {name, parse_offsets(header.tensors[found->second], info)};
  }
  // A tensor's name is never empty, so an entry with an empty name was not filled.
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i].tensor.empty())
      throw sharding_error(cat("does not list tensor ", quote(header.tensors[i].name)));
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> sharding_metadata(
    std::span<const SavedOffsets> tensors) {
  Json::Object info;
  info.reserve(tensors.size());
  for (const SavedOffsets& tensor : tensors) {
    Json::Array offsets(tensor.offsets.begin(), tensor.offsets.end());
    info.emplace_back(tensor.tensor, Json::Object{{std::string(kOffsetsKey), std::move(offsets)}});
  }
  return {{"format", "pt"},
          {std::string(kVersionKey), std::string(kVersion)},
          {std::string(kShardingKey), to_text(std::move(info))}};
}

}  // namespace fsdp::formats::safetensors
