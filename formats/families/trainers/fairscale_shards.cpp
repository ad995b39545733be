// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/fairscale_shards.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/torch/stored_file.h"

namespace fsdp::formats::fairscale {

Shards::Shards(std::shared_ptr<const Folder> opened, const ShardSet& set)
    : TorchFileSet(std::move(opened)) {
  std::vector<std::string> names;
  for (const auto& [rank, name] : set.weights.files) names.push_back(name);
  expect_files(names);
  for (const auto& [rank, name] : set.weights.files) read(rank, name, set);
  const std::int64_t count = ranks_.rbegin()->first + 1;
  if (count == static_cast<std::int64_t>(ranks_.size())) return;
  findings_.push_back(warning(ErrorCode::kShardMissing, cat("files exist of ", ranks_.size(),
                                                            " ranks out of at least ", count)));
}

void Shards::read(std::int64_t rank, const std::string& name, const ShardSet& set) {
  Rank& own = ranks_[rank];
  own.file = add_file(name, rank);
  std::uint32_t said = own.file;
  if (set.metadata) {
    const auto& files = set.metadata->files;
    const auto found =
        std::ranges::find_if(files, [&](const auto& file) { return file.first == rank; });
    if (found == files.end())
      fail(own.file, ErrorCode::kShardMissing, cat("has no file of metadata of rank ", rank));
    said = add_file(found->second, rank);
  }
  own.metadata_object = torch(said).root;
  own.weights_object = torch(own.file).root;
  in_context([&] { return path_of(said); },
             [&] {
               const auto shard = find_shard(own.metadata_object);
               if (!shard)
                 throw Error(ErrorCode::kMetaType, "has no shard metadata, as other ranks have");
               own.shard = *shard;
               own.metadata = read_metadata(*shard->metadata);
               if (set.metadata) own.shard = {{}, shard->metadata, &own.weights_object};
               if (own.shard.weights == nullptr || !has_weights(*own.shard.weights, own.metadata))
                 throw Error(ErrorCode::kMetaType, "lacks parameters that its shard metadata name");
             });
  // Every rank has the same parameters.
  const auto& first_rank = first().metadata.backings;
  const bool alike = std::ranges::equal(
      first_rank, own.metadata.backings,
      [](const Backing& a, const Backing& b) { return a.key == b.key && a.numel == b.numel; });
  if (!alike) fail(own.file, ErrorCode::kMetaType, "has other parameters than another rank");
  own.weights = weights_of(*own.shard.weights);
}

void Shards::fail(std::uint32_t file, ErrorCode code, const std::string& why) const {
  throw Error(code, cat(path_of(file), ": ", why));
}

std::string Shards::joined_key(const Value& key, std::uint32_t file) const {
  if (key.as_string() == nullptr)
    fail(file, ErrorCode::kMetaType, "has keys beside the weights that are not text");
  return *key.as_string();
}

std::vector<Shards::Held> Shards::held_of(std::size_t number, const std::string& what,
                                          const ValueOf& value_of) const {
  std::vector<Held> held;
  for (const auto& [rank, own] : ranks_) {
    const Backing& backing = own.metadata.backings[number];
    const Value* value = value_of(own, backing);
    if (value == nullptr) continue;
    const auto tensor = dense_tensor(*value);
    if (!tensor) fail(own.file, ErrorCode::kType, cat(quote(what, 200), " is not a tensor"));
    if (!held.empty() && held.front().tensor.dtype != tensor->dtype)
      fail(own.file, ErrorCode::kDtype, cat(quote(what, 200), ": ranks differ in type"));
    const auto length = static_cast<std::int64_t>(numel_of(tensor->shape));
    Held part{own.file, *tensor, 0, length - backing.padding};
    // With one rank a parameter may keep its shape; it is then not cut at all.
    const bool whole = backing.originals.size() == 1 &&
                       tensor->shape == backing.originals[0].shape && backing.padding == 0;
    if (!whole && tensor->shape.size() != 1)
      fail(own.file, ErrorCode::kShape, cat(quote(what, 200), " is not flat"));
    // The parts of all ranks have the same length; the last ones are padded.
    if (!held.empty() &&
        numel_of(held.front().tensor.shape) != static_cast<std::uint64_t>(length)) {
      fail(own.file, ErrorCode::kShape,
           cat(quote(what, 200), ": has ", length, " elements, another rank ",
               numel_of(held.front().tensor.shape)));
    }
    if (!backing.own && !whole) {
      part.begin = length == 0 || rank > backing.numel / length ? backing.numel : rank * length;
    }
    const std::int64_t wanted = std::min(length, backing.numel - part.begin);
    if (part.count != wanted) {
      fail(own.file, ErrorCode::kShape,
           cat(quote(what, 200), ": has ", length, " elements, ", backing.padding,
               " of them padding, where ", wanted, " of ", backing.numel, " are expected"));
    }
    held.push_back(std::move(part));
    if (backing.own || whole) break;
  }
  return held;
}

void Shards::add_original(const KeyPath& path, const std::string& name, const Original& original,
                          std::int64_t begin, const std::vector<Held>& held) {
  std::vector<Part> parts;
  for (const Held& part : held) {
    const std::int64_t from = std::max(begin, part.begin);
    const std::int64_t to = std::min(begin + original.numel, part.begin + part.count);
    if (part.tensor.shape.size() != 1) {
      parts.push_back(part_of(whole_box(original.shape), part.file, part.tensor));
    } else if (from < to) {
      add_flat_parts(parts, original.shape, from - begin, to - begin, part.file, part.tensor,
                     from - part.begin);
    }
  }
  add(path, name, held.front().tensor.dtype, original.shape, std::move(parts));
}

void Shards::add(KeyPath path, const std::string& name, DType dtype,
                 std::vector<std::int64_t> shape, std::vector<Part> parts) {
  path.emplace_back(name);
  add_tensor(std::move(path), dtype, std::move(shape), std::move(parts));
}

namespace {

namespace fs = std::filesystem;

// Reads the first file of a set without raising errors: its own reader reports them.
std::optional<TorchFile> first_file(const fs::path& folder, const RankFiles& set) {
  try {
    const auto file = file_at(folder / set.files[0].second);
    const TorchStream stream = sniff_torch_stream(*file);
    if (stream != TorchStream::kZip && stream != TorchStream::kLegacy) return std::nullopt;
    return read_torch_save(*file);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return std::nullopt;
  }
}

}  // namespace

std::vector<ShardSet> shard_sets(const Listing& folder, std::vector<std::string>* others) {
  std::vector<ShardSet> sets;
  std::vector<std::pair<RankFiles, Metadata>> bare;  // only metadata
  std::vector<std::pair<RankFiles, TorchFile>> rest;
  for (RankFiles& set : rank_files(folder.names)) {
    auto file = first_file(folder.path(), set);
    if (!file) {
      if (others != nullptr) others->push_back(set.files[0].second);
      continue;
    }
    try {
      const auto shard = find_shard(file->root);
      if (!shard) {
        rest.emplace_back(std::move(set), std::move(*file));
      } else if (shard->weights != nullptr) {
        sets.push_back({std::move(set), std::nullopt});
      } else {
        Metadata metadata = read_metadata(*shard->metadata);
        bare.emplace_back(std::move(set), std::move(metadata));
      }
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      sets.push_back({std::move(set), std::nullopt});  // opening it reports the error
    }
  }
  for (auto& [set, file] : rest) {
    const auto metadata = std::ranges::find_if(
        bare, [&](const auto& said) { return has_weights(file.root, said.second); });
    if (metadata != bare.end()) {
      sets.push_back({std::move(set), metadata->first});
    } else if (others != nullptr) {
      others->push_back(set.files[0].second);
    }
  }
  return sets;
}

}  // namespace fsdp::formats::fairscale
