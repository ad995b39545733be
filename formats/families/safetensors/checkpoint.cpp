// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/index.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/safetensors/tensor_files.h"

namespace fsdp::formats::safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
// Headers that are read and parsed at once; most of the time they wait for the disk or the store.
constexpr std::size_t kHeadersAtOnce = 16;

// "shard-00002-model-00001-of-00001.safetensors" -> 2.
std::optional<std::int64_t> shard_number(std::string_view name) {
  constexpr std::string_view kPrefix = "shard-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end == name.data() || *end != '-' || number < 1) return std::nullopt;
  return number;
}

class SafetensorsCheckpoint : public TensorFiles {
 public:
  // Checks `files`, which the folder must hold, against `index` if it is set.
  SafetensorsCheckpoint(std::shared_ptr<const Folder> folder, std::vector<std::string> files,
                        const std::optional<FileIndex>& index, std::string shown,
                        std::string layout, Damage damage)
      : TensorFiles(std::move(folder)) {
    description_ = {std::move(shown), "safetensors", std::move(layout)};
    std::vector<Header> headers(files.size());
    for (std::string& name : files) index_.files.push_back({.name = std::move(name)});
    pool_.examine(index_.files);
    std::vector<std::optional<Error>> errors(files.size());
    run_each(headers.size(), kHeadersAtOnce, [&](std::size_t f) {
      try {
        if (!index_.files[f].bytes)
          throw in_folder(ErrorCode::kShardMissing, quote(index_.files[f].name) + " is missing");
        const auto file = pool_.get(static_cast<std::uint32_t>(f));
        in_context(file->name(), [&] {
          headers[f] = read_header(
              *file, 0, damage == Damage::kRefused ? Trailing::kRefuse : Trailing::kAllowEither);
          if (headers[f].end < file->size()) read_header(*file);  // throws
        });
      } catch (const Error& error) {
        if (damage == Damage::kRefused || is_no_answer(error.code())) throw;
        errors[f] = error;
      }
    });
    for (std::size_t f = 0; f < errors.size(); ++f) {
      if (errors[f]) {
        findings_.push_back({.code = errors[f]->code(),
                             .message = errors[f]->what(),
                             .file = index_.files[f].name});
      }
    }
    if (index && damage == Damage::kGoneAround) {
      find_index_faults(*index, headers);
    } else if (index) {
      std::vector<FileHeader> views;
      for (std::size_t f = 0; f < headers.size(); ++f)
        views.push_back({index_.files[f].name, &headers[f]});
      in_context(description_.path, [&] { check_index(*index, views); });
    }
    add_tensors(headers);
    // The shape of a whole tensor follows from all of its parts, which are not all there.
    if (description_.layout == "hf-sharded" && !index) {
      for (const std::optional<Error>& error : errors) {
        if (error) throw Error(*error);
      }
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Location& location = tensor.chunks.location(chunk);
    return tensor_data(location.file, location.offset, location.length, tensor.dtype);
  }

  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    return expect_elements(tensor.chunks.location(chunk), tensor.dtype, part);
  }

 private:
  Error in_folder(ErrorCode code, const std::string& why) const {
    return {code, description_.path + ": " + why};
  }

  // Reports each tensor whose file is another one than the index says, or is unreadable.
  void find_index_faults(const FileIndex& index, const std::vector<Header>& headers) {
    std::unordered_map<std::string_view, std::string_view> holder;
    for (std::size_t f = 0; f < headers.size(); ++f) {
      for (const Tensor& tensor : headers[f].tensors)
        holder.emplace(tensor.name, index_.files[f].name);
    }
    const auto report = [&](const std::string& tensor, std::string message) {
      findings_.push_back(
          {.code = ErrorCode::kIndex, .message = std::move(message), .key = tensor});
    };
    for (const IndexEntry& entry : index.weight_map) {
      const auto found = holder.find(entry.tensor);
      if (found == holder.end()) {
        report(entry.tensor, "is missing from " + quote(entry.file));
        continue;
      }
      if (found->second != entry.file) {
        report(entry.tensor,
               cat("lies in ", quote(found->second), ", but the map says ", quote(entry.file)));
      }
      holder.erase(found);
    }
    for (const auto& [tensor, file] : holder)
      report(std::string(tensor), cat("lies in ", quote(file), ", but is not in the map"));
  }

  void add_tensors(const std::vector<Header>& headers) {
    std::vector<std::optional<std::vector<SavedOffsets>>> offsets;
    bool sharded = false;
    for (std::size_t f = 0; f < headers.size(); ++f) {
      in_context([&] { return description_.path + ": " + escape(index_.files[f].name); },
                 [&] { offsets.push_back(saved_offsets(headers[f])); });
      sharded = sharded || offsets.back().has_value();
    }
    if (sharded) {
      description_.layout = "hf-sharded";
      check_shard_numbers();
      description_.ranks = static_cast<std::int64_t>(headers.size());
    }
    std::unordered_map<std::string, std::size_t> known;
    for (std::uint32_t f = 0; f < headers.size(); ++f) {
      for (std::size_t i = 0; i < headers[f].tensors.size(); ++i) {
        const Tensor& tensor = headers[f].tensors[i];
        const std::vector<std::int64_t> offset =
            offsets[f] ? (*offsets[f])[i].offsets
                       : std::vector<std::int64_t>(tensor.shape.size(), 0);
        add_chunk(tensor, offset, f, sharded, known);
      }
    }
    // Chunks without elements also extend a tensor's shape: writers put them at its end.
    for (TensorEntry& tensor : index_.tensors) {
      checked_mul(checked_numel(tensor.shape, "number of elements"), item_bytes(tensor.dtype),
                  "number of bytes");
    }
  }

  void add_chunk(const Tensor& tensor, const std::vector<std::int64_t>& offset, std::uint32_t file,
                 bool sharded, std::unordered_map<std::string, std::size_t>& known) {
    const auto [at, fresh] = known.try_emplace(tensor.name, index_.tensors.size());
    if (fresh) {
      index_.add(TensorEntry{tensor.name,
                             {tensor.name},
                             tensor.dtype,
                             std::vector<std::int64_t>(tensor.shape.size(), 0),
                             ChunkList(tensor.shape.size())});
    }
    TensorEntry& entry = index_.tensors[at->second];
    const std::string name = quote(tensor.name, 200);
    const auto& files = index_.files;
    if (!fresh && !sharded) {
      throw in_folder(ErrorCode::kIndex,
                      cat(name, " is in ", quote(files[entry.chunks.location(0).file].name),
                          " and in ", quote(files[file].name)));
    }
    if (entry.dtype != tensor.dtype) {
      throw in_folder(ErrorCode::kDtype,
                      cat(escape(files[file].name), ": ", name, " is ", torch_name(tensor.dtype),
                          ", expected ", torch_name(entry.dtype)));
    }
    if (entry.shape.size() != tensor.shape.size()) {
      throw in_folder(ErrorCode::kRank,
                      cat(escape(files[file].name), ": ", name, " has ", tensor.shape.size(),
                          " dimensions, expected ", entry.shape.size()));
    }
    for (std::size_t d = 0; d < offset.size(); ++d) {
      entry.shape[d] = std::max(entry.shape[d], offset[d] + tensor.shape[d]);
    }
    entry.chunks.add(offset, tensor.shape, {file, 0, tensor.begin, tensor.bytes});
  }

  // The files do not record the sizes of whole tensors, so only the numbers show that a rank is
  // missing.
  void check_shard_numbers() {
    std::set<std::int64_t> numbers;
    for (FileEntry& file : index_.files) {
      const auto number = shard_number(file.name);
      if (!number) continue;
      numbers.insert(*number);
      file.rank = *number - 1;
    }
    std::int64_t expected = 1;
    for (const std::int64_t number : numbers) {
      if (number != expected) {
        throw in_folder(ErrorCode::kShardMissing,
                        cat("the file of shard ", expected, " is missing; shards up to ",
                            *numbers.rbegin(), " are there"));
      }
      ++expected;
    }
  }
};

std::vector<std::string> names_ending(const std::vector<std::string>& names,
                                      std::string_view suffix) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (name.ends_with(suffix)) out.push_back(name);
  }
  return out;
}

}  // namespace

bool looks_like_safetensors(const ByteSource& source) {
  std::array<std::byte, 9> start{};
  if (source.size() < start.size()) return false;
  source.read_at(0, start);
  const std::uint64_t length = load_u64(start, 0);
  return length >= 2 && length <= kMaxHeaderBytes && length <= source.size() - 8 &&
         start[8] == std::byte{'{'};
}

bool is_safetensors_folder(const Listing& folder) {
  return folder.any([](const std::string& name) {
    return name.ends_with(kSuffix) || name.ends_with(kIndexSuffix);
  });
}

std::unique_ptr<StoredCheckpoint> open_file(const std::filesystem::path& path, Damage damage) {
  const std::filesystem::path folder = folder_of_place(path);
  return std::make_unique<SafetensorsCheckpoint>(
      folder_at(folder), std::vector<std::string>{path.filename()}, std::nullopt,
      escape(path.native()), "file", damage);
}

std::unique_ptr<StoredCheckpoint> open_folder(const std::filesystem::path& path,
                                              const std::optional<std::string>& index,
                                              Damage damage) {
  auto folder = folder_at(path);
  const std::vector<std::string> names = folder->list();
  const std::string shown = escape(path.native());
  std::vector<std::string> indexes =
      index ? std::vector<std::string>{*index} : names_ending(names, kIndexSuffix);
  if (indexes.size() > 1) {
    throw Error(ErrorCode::kIndex, cat(shown, ": has several index files, ", quote(indexes[0]),
                                       " and ", quote(indexes[1]), "; name one of them"));
  }
  if (indexes.size() == 1 && damage == Damage::kGoneAround) {
    try {
      (void)read_index(*folder, indexes[0]);
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      indexes.clear();  // the headers have the names as well
    }
  }
  if (indexes.size() == 1) {
    const FileIndex parsed = read_index(*folder, indexes[0]);
    return std::make_unique<SafetensorsCheckpoint>(std::move(folder), files_of(parsed), parsed,
                                                   shown, "hf", damage);
  }
  std::vector<std::string> files = names_ending(names, kSuffix);
  if (files.empty()) throw Error(ErrorCode::kNotFound, shown + ": holds no safetensors file");
  return std::make_unique<SafetensorsCheckpoint>(std::move(folder), std::move(files), std::nullopt,
                                                 shown, "hf", damage);
}

}  // namespace fsdp::formats::safetensors
