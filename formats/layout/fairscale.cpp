// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/fairscale.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/base/error.h"
#include "formats/base/file.h"
#include "formats/base/text.h"
#include "formats/layout/fairscale_metadata.h"
#include "formats/layout/joined_checkpoint.h"
#include "formats/layout/per_rank.h"
#include "formats/layout/state_tree.h"
#include "formats/layout/torch_files.h"

namespace fsdp::formats::fairscale {
namespace {

namespace fs = std::filesystem;

// The files of one model: metadata beside the weights, or in files of their own.
struct ShardSet {
  RankFiles weights;
  std::optional<RankFiles> metadata;
};

bool holds_tensor(const Value& value) {
  const std::vector<Leaf> leaves = leaves_of(value);
  return std::any_of(leaves.begin(), leaves.end(), [](const Leaf& leaf) {
    return dense_tensor(leaf.value) || !special_tensor(leaf.value).empty();
  });
}

class FairscaleCheckpoint : public TorchFilesCheckpoint {
 public:
  FairscaleCheckpoint(Directory opened, const ShardSet& set)
      : TorchFilesCheckpoint(std::move(opened)) {
    for (const auto& [rank, name] : set.weights.files) read(rank, name, set);
    const Rank& first = ranks_.begin()->second;
    note_ranks();
    if (first.shard.way.empty()) {
      add_weights({});
    } else {
      // What consolidate_shard_weights returns stands alone where the file holds nothing else.
      alone_ = is_alone(first.shard);
      walk(first.metadata_object, {}, 0);
    }
    note_left_out();
    description_ = {escape(folder().path().native()), "per-rank", "fairscale", std::nullopt,
                    static_cast<std::int64_t>(ranks_.size())};
  }

 private:
  struct Rank {
    std::uint32_t file = 0;
    Value metadata_object;  // of the file with the metadata: what `shard` points into
    Value weights_object;
    Shard shard;
    Metadata metadata;
    Weights weights;
  };
  // Where a parameter lies.
  struct Origin {
    std::size_t backing;
    std::int64_t begin;  // of the backing parameter
    const Original* original;
  };

  void read(std::int64_t rank, const std::string& name, const ShardSet& set) {
    Rank& own = ranks_[rank];
    own.file = add_file(name, rank);
    std::uint32_t said = own.file;
    if (set.metadata) {
      const auto& files = set.metadata->files;
      const auto found = std::find_if(files.begin(), files.end(),
                                      [&](const auto& file) { return file.first == rank; });
      if (found == files.end())
        fail(own.file, ErrorCode::kShardMissing, cat("has no file of metadata of rank ", rank));
      said = add_file(found->second, rank);
    }
    own.metadata_object = torch(said).root;
    own.weights_object = torch(own.file).root;
    try {
      const auto shard = find_shard(own.metadata_object);
      if (!shard) throw Error(ErrorCode::kMetaType, "has no shard metadata, as other ranks have");
      own.shard = *shard;
      own.metadata = read_metadata(*shard->metadata);
      if (set.metadata) own.shard = {{}, shard->metadata, &own.weights_object};
      if (own.shard.weights == nullptr || !has_weights(*own.shard.weights, own.metadata))
        throw Error(ErrorCode::kMetaType, "lacks parameters that its shard metadata name");
    } catch (const Error& error) {
      throw error.in(path_of(said));
    }
    check_alike(own);
    own.weights = weights_of(*own.shard.weights);
  }

  [[noreturn]] void fail(std::uint32_t file, ErrorCode code, const std::string& why) const {
    throw Error(code, cat(path_of(file), ": ", why));
  }

  // Every rank has the same parameters.
  void check_alike(const Rank& rank) const {
    const auto& first = ranks_.begin()->second.metadata.backings;
    const auto& own = rank.metadata.backings;
    const bool alike = std::equal(
        first.begin(), first.end(), own.begin(), own.end(),
        [](const Backing& a, const Backing& b) { return a.key == b.key && a.numel == b.numel; });
    if (!alike) fail(rank.file, ErrorCode::kMetaType, "has other parameters than another rank");
  }

  void note_ranks() {
    const std::int64_t count = ranks_.rbegin()->first + 1;
    if (count == static_cast<std::int64_t>(ranks_.size())) return;
    findings_.push_back(
        {.code = ErrorCode::kShardMissing,
         .message = cat("files are there of ", ranks_.size(), " ranks out of ", count, " at least"),
         .file = {},
         .key = {},
         .bytes = {},
         .severity = Finding::Severity::kWarning});
  }

  static bool is_alone(const Shard& shard) {
    return std::all_of(shard.way.begin(), shard.way.end(), [&](const Value* mapping) {
      const std::size_t wanted = mapping == shard.way.back() ? 2 : 1;
      return mapping_entries(*mapping)->size() == wanted;
    });
  }

  // Everything of the lowest rank's file, with the weights joined.
  void walk(const Value& mapping, const KeyPath& path, std::size_t depth) {
    const Rank& first = ranks_.begin()->second;
    const auto entries = mapping_entries(mapping);
    for (const auto& [key, value] : *entries) {
      KeyPath below = path;
      below.emplace_back(joined_key(key, first.file));
      if (&value == first.shard.weights) {
        add_weights(alone_ ? KeyPath() : below);
      } else if (&value == first.shard.metadata) {
        continue;
      } else if (depth + 1 < first.shard.way.size() && &value == first.shard.way[depth + 1]) {
        walk(value, below, depth + 1);
      } else if (holds_tensor(value)) {
        left_out_.push_back(joined(below));
      } else {
        add_value(below, value, first.file);
      }
    }
  }

  std::string joined_key(const Value& key, std::uint32_t file) const {
    if (key.as_string() == nullptr)
      fail(file, ErrorCode::kMetaType, "has keys beside the weights that are no texts");
    return *key.as_string();
  }

  void add_weights(const KeyPath& path) {
    const Rank& first = ranks_.begin()->second;
    std::unordered_map<std::string, Origin> by_name;
    for (std::size_t b = 0; b < first.metadata.backings.size(); ++b) {
      const Backing& backing = first.metadata.backings[b];
      const std::vector<Held> held = held_of(b);
      if (backing.own && ranks_.size() > 1) own_.push_back(backing.key);
      std::int64_t begin = 0;
      for (const Original& original : backing.originals) {
        add_original(path, original.name, original, begin, held);
        by_name.emplace(original.name, Origin{b, begin, &original});
        begin += original.numel;
      }
    }
    // consolidate_shard_weights gives the further names of the last unit alone.
    for (const auto& [kept, further] : first.metadata.tied) {
      const auto found = by_name.find(kept);
      if (found == by_name.end()) {
        fail(first.file, ErrorCode::kMetaType,
             cat(quote(further, 200), " is tied to ", quote(kept, 200), ", which is not there"));
      }
      const Origin& origin = found->second;
      add_original(path, further, *origin.original, origin.begin, held_of(origin.backing));
    }
    note_unknown(path, by_name);
    for (const std::string& name : first.metadata.buffers) {
      const auto buffer = first.weights.find(name);
      const auto tensor =
          buffer == first.weights.end() ? std::nullopt : dense_tensor(*buffer->second);
      if (!tensor) fail(first.file, ErrorCode::kMetaType, cat("has no buffer ", quote(name, 200)));
      add(path, name, tensor->dtype, tensor->shape,
          {part_of(whole_box(tensor->shape), first.file, *tensor)});
    }
  }

  // Tied names of parameters that are not flattened stand in no metadata.
  void note_unknown(const KeyPath& path, const std::unordered_map<std::string, Origin>& by_name) {
    const Rank& first = ranks_.begin()->second;
    std::set<std::string> known(first.metadata.buffers.begin(), first.metadata.buffers.end());
    for (const Backing& backing : first.metadata.backings) known.insert(backing.key);
    for (const auto& [key, value] : first.weights) {
      if (known.contains(key) || by_name.contains(key)) continue;
      KeyPath whole = path;
      whole.emplace_back(key);
      left_out_.push_back(joined(whole));
    }
    std::sort(left_out_.begin(), left_out_.end());
  }

  // A rank's part of a backing parameter.
  struct Held {
    std::uint32_t file;
    TensorValue tensor;
    std::int64_t begin;  // of the backing parameter
    std::int64_t count;  // without padding
  };

  std::vector<Held> held_of(std::size_t number) const {
    std::vector<Held> held;
    for (const auto& [rank, own] : ranks_) {
      const Backing& backing = own.metadata.backings[number];
      const auto tensor = dense_tensor(*own.weights.at(backing.key));
      if (!tensor) fail(own.file, ErrorCode::kType, cat(quote(backing.key, 200), " is no tensor"));
      if (!held.empty() && held.front().tensor.dtype != tensor->dtype)
        fail(own.file, ErrorCode::kDtype, cat(quote(backing.key, 200), ": ranks differ in type"));
      const auto length = static_cast<std::int64_t>(volume(whole_box(tensor->shape).view()));
      Held part{own.file, *tensor, 0, length - backing.padding};
      // One rank's parameter may keep its shape; it is then not cut at all.
      const bool whole = backing.originals.size() == 1 &&
                         tensor->shape == backing.originals[0].shape && backing.padding == 0;
      if (!whole && tensor->shape.size() != 1)
        fail(own.file, ErrorCode::kShape, cat(quote(backing.key, 200), " is not flat"));
      // All ranks' parts are as long, the last ones padded.
      if (!backing.own && !whole) {
        part.begin = length == 0 || rank > backing.numel / length ? backing.numel : rank * length;
      }
      const std::int64_t wanted = std::min(length, backing.numel - part.begin);
      if (part.count != wanted) {
        fail(own.file, ErrorCode::kShape,
             cat(quote(backing.key, 200), ": has ", length, " elements, ", backing.padding,
                 " of them padding, where ", wanted, " of ", backing.numel, " are expected"));
      }
      held.push_back(std::move(part));
      if (backing.own || whole) break;
    }
    return held;
  }

  void add_original(const KeyPath& path, const std::string& name, const Original& original,
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

  void add(KeyPath path, const std::string& name, DType dtype, std::vector<std::int64_t> shape,
           std::vector<Part> parts) {
    path.emplace_back(name);
    add_tensor(std::move(path), dtype, std::move(shape), std::move(parts));
  }

  void note_left_out() {
    const auto note = [&](ErrorCode code, const std::vector<std::string>& keys,
                          const char* message) {
      std::string text;
      for (const std::string& key : keys) text += (text.empty() ? "" : ", ") + escape(key);
      if (text.empty()) return;
      findings_.push_back({.code = code,
                           .message = message + text,
                           .file = {},
                           .key = {},
                           .bytes = {},
                           .severity = Finding::Severity::kWarning});
    };
    note(ErrorCode::kExtraFile, left_out_,
         "each rank has its own part, without metadata to join them by; in no output: ");
    note(ErrorCode::kRank, own_, "each rank has its own; the lowest rank's is read of: ");
  }

  std::map<std::int64_t, Rank> ranks_;
  bool alone_ = false;
  std::vector<std::string> left_out_;
  std::vector<std::string> own_;
};

// What the first file of a set holds, without its errors: its own reader says them.
std::optional<TorchFile> first_file(const fs::path& folder, const RankFiles& set) {
  try {
    const auto file = File::open(folder / set.files[0].second);
    const TorchStream stream = sniff_torch_stream(*file);
    if (stream != TorchStream::kZip && stream != TorchStream::kLegacy) return std::nullopt;
    return read_torch_file(*file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<ShardSet> shard_sets(const fs::path& folder, std::vector<std::string>* others) {
  std::vector<ShardSet> sets;
  std::vector<std::pair<RankFiles, Metadata>> bare;  // metadata alone
  std::vector<std::pair<RankFiles, TorchFile>> rest;
  for (RankFiles& set : rank_files(Directory::open(folder).list())) {
    auto file = first_file(folder, set);
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
    } catch (const Error&) {
      sets.push_back({std::move(set), std::nullopt});  // opening it says what is wrong
    }
  }
  for (auto& [set, file] : rest) {
    const auto metadata = std::find_if(bare.begin(), bare.end(), [&](const auto& said) {
      return has_weights(file.root, said.second);
    });
    if (metadata != bare.end()) {
      sets.push_back({std::move(set), metadata->first});
    } else if (others != nullptr) {
      others->push_back(set.files[0].second);
    }
  }
  return sets;
}

}  // namespace

bool is_fairscale_folder(const fs::path& folder) {
  return !shard_sets(folder, nullptr).empty();
}

std::unique_ptr<Checkpoint> open_fairscale(const fs::path& folder) {
  std::vector<std::string> others;
  const std::vector<ShardSet> sets = shard_sets(folder, &others);
  if (sets.size() == 1 && others.empty())
    return std::make_unique<FairscaleCheckpoint>(Directory::open(folder), sets[0]);
  std::vector<CheckpointPart> parts;
  for (const ShardSet& set : sets) {
    parts.push_back(
        {.checkpoint = std::make_unique<FairscaleCheckpoint>(Directory::open(folder), set),
         .name = sets.size() == 1 ? "" : set.weights.name,
         .folder = {}});
  }
  Findings findings;
  for (const std::string& name : others) {
    findings.push_back({.code = ErrorCode::kExtraFile,
                        .message = "is of a rank too, but holds no shard metadata: left out",
                        .file = name,
                        .key = {},
                        .bytes = {},
                        .severity = Finding::Severity::kWarning});
  }
  return join_checkpoints(std::move(parts),
                          {escape(folder.native()), "per-rank", "fairscale", std::nullopt, 1},
                          std::move(findings));
}

}  // namespace fsdp::formats::fairscale
