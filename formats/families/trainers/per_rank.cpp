// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/per_rank.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/torch/file_set.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/ranks.h"
#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/value_compare.h"

namespace fsdp::formats {
namespace {

class PerRankCheckpoint : public TorchFileSet {
 public:
  // Without `find`, the values themselves tell their places.
  PerRankCheckpoint(std::shared_ptr<const Folder> opened, const RankFiles& set,
                    const PartFinder& find)
      : TorchFileSet(std::move(opened)) {
    std::vector<std::string> names;
    for (const auto& [rank, name] : set.files) names.push_back(name);
    expect_files(names);
    for (const auto& [rank, name] : set.files) read(rank, name, find);
    if (!same_keys_) check_paths();
    for (Entry& entry : entries_) add(entry);
    entries_.clear();
    // Missing replicas do no harm; other missing ranks also leave holes.
    const std::map<std::int64_t, std::string> present(set.files.begin(), set.files.end());
    const SomeNames missing = missing_ranks(present, ranks_);
    if (!find && missing.count() != 0) {
      findings_.push_back(
          warning(ErrorCode::kShardMissing, cat("the tensors are laid out for ", ranks_,
                                                " ranks; missing files: rank ", missing.text())));
    }
    const bool one = set.files.size() == 1;
    description_ = {
        escape((one ? folder().path() / set.files[0].second : folder().path()).native()),
        "per-rank", one && ranks_ > 1 ? "one-rank" : "sharded-tensors", std::nullopt,
        std::max(ranks_, static_cast<std::int64_t>(set.files.size()))};
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    if (const auto torn = torn_.find(tensor.key); torn != torn_.end())
      throw Error(ErrorCode::kMismatch,
                  cat(description_.path, ": ", quote(tensor.key, 200), ": ", torn->second));
    if (flat_.contains(tensor.key)) {
      throw Error(ErrorCode::kUnsupported,
                  cat(description_.path, ": ", quote(tensor.key, 200),
                      ": is a flat parameter of FSDP's LOCAL_STATE_DICT, and the names and shapes "
                      "of the parameters in it are not in the checkpoint; save with "
                      "SHARDED_STATE_DICT"));
    }
    return TorchFileSet::chunk(tensor, chunk);
  }

  // Returns the first file's object, if no other file has more in it.
  std::optional<Value> tree() const override {
    return same_keys_ ? std::optional(torch(0).root) : std::nullopt;
  }

 private:
  struct Entry {
    KeyPath path;
    bool tensor = false;
    bool sharded = false;
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    std::vector<Part> parts;
    // The part at each place, by its position in `parts`; replicas must be equal to it.
    std::map<std::vector<std::int64_t>, std::size_t> places;
    std::string torn;  // a part that differs between two ranks; empty: none
    Value value;
    std::uint32_t file = 0;
  };

  // Throws: kKey if a rank has a value where another has a mapping.
  void check_paths() const {
    std::vector<const KeyPath*> paths;
    paths.reserve(entries_.size());
    for (const Entry& entry : entries_) paths.push_back(&entry.path);
    std::ranges::sort(paths, [](const auto* a, const auto* b) { return *a < *b; });
    for (std::size_t i = 1; i < paths.size(); ++i) {
      const KeyPath& outer = *paths[i - 1];
      const KeyPath& inner = *paths[i];
      if (outer.size() > inner.size() || !std::equal(outer.begin(), outer.end(), inner.begin()))
        continue;
      throw Error(ErrorCode::kKey, cat(escape(folder().path().native()), ": ",
                                       quote(joined(outer), 200), " is a value on one rank, and ",
                                       quote(joined(inner), 200), " lies in it on another"));
    }
  }

  void read(std::int64_t rank, const std::string& name, const PartFinder& find) {
    const std::uint32_t file = add_file(name, rank);
    std::vector<Leaf> leaves;
    in_context([&] { return path_of(file); }, [&] { leaves = leaves_of(torch(file).root); });
    for (Leaf& leaf : leaves) {
      in_context([&] { return cat(path_of(file), ": ", quote(leaf.key, 200)); },
                 [&] { read(file, leaf, find ? find(rank, leaf) : sharded_value(leaf.value)); });
    }
    if (file != 0) drop_object(file);
  }

  void read(std::uint32_t file, Leaf& leaf, const std::optional<ShardedValue>& sharded) {
    const auto [at, fresh] = by_key_.try_emplace(leaf.key, entries_.size());
    if (fresh) {
      same_keys_ = same_keys_ && file == 0;
      entries_.emplace_back();
      Entry& entry = entries_.back();
      entry.path = leaf.path;
      entry.file = file;
      if (sharded) {
        entry.tensor = entry.sharded = true;
        entry.dtype = sharded->dtype;
        entry.shape = sharded->shape;
      } else if (const auto tensor = dense_tensor(leaf.value)) {
        entry.tensor = true;
        entry.dtype = tensor->dtype;
        entry.shape = tensor->shape;
        entry.parts.push_back(part_of(whole_box(tensor->shape), file, *tensor));
      } else {
        entry.value = leaf.value;
      }
    } else if (entries_[at->second].file == file) {
      throw Error(ErrorCode::kKey, "two entries have this name");
    }
    Entry& entry = entries_[at->second];
    if (!sharded) {
      if (!fresh) compare_whole(file, leaf, entry);
      return;
    }
    if (!entry.sharded || entry.dtype != sharded->dtype || entry.shape != sharded->shape) {
      throw Error(
          entry.dtype != sharded->dtype ? ErrorCode::kDtype : ErrorCode::kShape,
          cat("is ", torch_name(sharded->dtype), " ", shape_text(sharded->shape),
              ", in another rank's file ", torch_name(entry.dtype), " ", shape_text(entry.shape)));
    }
    ranks_ = std::max(ranks_, sharded->ranks);
    for (const ShardedValue::Local& local : sharded->locals) {
      std::vector<std::int64_t> place = local.box.offset;
      place.insert(place.end(), local.box.size.begin(), local.box.size.end());
      Part part = part_of(local.box, file, local.tensor);
      const auto [known, first] = entry.places.try_emplace(std::move(place), entry.parts.size());
      if (first) {
        entry.parts.push_back(std::move(part));
      } else if (const Part& other = entry.parts[known->second];
                 entry.torn.empty() && !are_equal(other, part)) {
        entry.torn = cat(index_.files[other.file].name, " and ", index_.files[file].name, " hold ",
                         box_text(part.box.view()),
                         " with other bytes: replicas that differ, or tensors of several groups "
                         "of ranks (experts) under one name");
      }
    }
  }

  // A tensor that is whole on every rank is taken from the first one.
  void compare_whole(std::uint32_t file, const Leaf& leaf, const Entry& entry) {
    const auto tensor = dense_tensor(leaf.value);
    if (!tensor || !entry.tensor || entry.sharded || !is_differentiable(entry.dtype)) return;
    const bool alike = tensor->dtype == entry.dtype && tensor->shape == entry.shape;
    if (alike && are_equal(entry.parts[0], part_of(whole_box(tensor->shape), file, *tensor)))
      return;
    if (!unlike_.insert(leaf.key).second) return;
    findings_.push_back(warning(
        ErrorCode::kMismatch,
        cat("differs from the tensor in ", index_.files[entry.file].name, ", which is used"),
        index_.files[file].name, leaf.key));
  }

  void add(Entry& entry) {
    if (!entry.tensor) {
      add_value(std::move(entry.path), std::move(entry.value), entry.file);
      return;
    }
    add_tensor(std::move(entry.path), entry.dtype, std::move(entry.shape), std::move(entry.parts));
    const std::string& key = index_.tensors.back().key;
    if (!entry.torn.empty()) {
      findings_.push_back({.code = ErrorCode::kMismatch, .message = entry.torn, .key = key});
      torn_.emplace(key, std::move(entry.torn));
    }
    // FSDP1 joins all parameters of a unit into one with this name.
    if (entry.sharded && key.ends_with("_flat_param")) flat_.insert(key);
  }

  std::vector<Entry> entries_;  // while opening
  std::unordered_map<std::string, std::size_t> by_key_;
  std::set<std::string> flat_;
  std::map<std::string, std::string> torn_;  // by key: the part that differs between two ranks
  std::set<std::string> unlike_;             // keys of whole tensors that differ between ranks
  bool same_keys_ = true;
  std::int64_t ranks_ = 1;
};

// Returns the name before the rank, and the rank; nothing if `name` has none.
std::optional<std::pair<std::string, std::int64_t>> rank_in(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view suffix = name.substr(dot);
  if (suffix != ".pt" && suffix != ".pth" && suffix != ".bin" && suffix != ".ckpt" &&
      suffix != ".torch")
    return std::nullopt;
  std::string_view stem = name.substr(0, dot);
  std::size_t digits = stem.size();
  while (digits > 0 && stem[digits - 1] >= '0' && stem[digits - 1] <= '9') --digits;
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(stem.data() + digits, stem.data() + stem.size(), rank);
  if (digits == stem.size() || error != std::errc()) return std::nullopt;
  stem = stem.substr(0, digits);
  const auto drop_separator = [&] {
    if (stem.ends_with('_') || stem.ends_with('-') || stem.ends_with('.')) stem.remove_suffix(1);
  };
  drop_separator();
  if (stem.ends_with("rank") || stem.ends_with("shard")) {
    stem.remove_suffix(stem.ends_with("rank") ? 4 : 5);
    drop_separator();
  } else if (stem != "checkpoint") {
    return std::nullopt;
  }
  return std::pair(std::string(stem) + std::string(suffix), rank);
}

// Returns the part before a suffix and before "_world_size_8".
std::string short_name(const std::string& name) {
  std::string out = name.substr(0, name.rfind('.'));
  out = out.substr(0, out.find("_world_size"));
  return out.empty() ? "ranks" : out;
}

}  // namespace

std::vector<RankFiles> rank_files(const std::vector<std::string>& names) {
  std::vector<RankFiles> sets;
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    const auto said = rank_in(name);
    if (!said) continue;
    const auto known = std::ranges::find(keys, said->first);
    if (known == keys.end()) {
      keys.push_back(said->first);
      sets.push_back({short_name(said->first), {{said->second, name}}});
    } else {
      sets[static_cast<std::size_t>(known - keys.begin())].files.emplace_back(said->second, name);
    }
  }
  for (RankFiles& set : sets) std::ranges::sort(set.files);
  return sets;
}

std::vector<RankFiles> sharded_sets(const Listing& folder, std::vector<RankFiles>* others) {
  std::vector<RankFiles> sets;
  for (RankFiles& set : rank_files(folder.names)) {
    if (holds_sharded_tensors(folder.path() / set.files[0].second)) {
      sets.push_back(std::move(set));
    } else if (others != nullptr) {
      others->push_back(std::move(set));
    }
  }
  return sets;
}

bool holds_sharded_tensors(const std::filesystem::path& path) {
  try {
    const auto file = file_at(path);
    if (sniff_torch_stream(*file) != TorchStream::kZip) return false;
    const std::vector<Leaf> leaves = leaves_of(read_torch_save(*file).root);
    return std::ranges::any_of(
        leaves, [](const Leaf& leaf) { return special_tensor(leaf.value) == "sharded"; });
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return false;  // its own reader reports the error
  }
}

bool saved_alike(const TorchFile& a, const Value& of_a, const TorchFile& b, const Value& of_b) {
  const ValueComparison compared = compare_values(of_a, of_b);
  return compared.same && std::ranges::all_of(compared.storages, [&](const auto& pair) {
           const auto in_a = a.records.find(pair.first.key);
           const auto in_b = b.records.find(pair.second.key);
           return in_a != a.records.end() && in_b != b.records.end() &&
                  in_a->second.bytes == in_b->second.bytes && in_a->second.crc &&
                  in_a->second.crc == in_b->second.crc;
         });
}

std::unique_ptr<StoredCheckpoint> open_rank_files(const std::filesystem::path& folder,
                                                  const RankFiles& set, const PartFinder& find) {
  return std::make_unique<PerRankCheckpoint>(folder_at(folder), set, find);
}

std::unique_ptr<StoredCheckpoint> open_saved_file(const std::filesystem::path& path) {
  auto checkpoint = open_torch_save(path);
  const auto& values = checkpoint->index().values;
  const bool sharded = std::ranges::any_of(values, [&](const ValueEntry& value) {
    return special_tensor(checkpoint->value(value)) == "sharded";
  });
  if (!sharded) return checkpoint;
  const std::string name = path.filename();
  RankFiles one{name, {{0, name}}};
  for (const RankFiles& set : rank_files({name})) one.files[0].first = set.files[0].first;
  return open_rank_files(folder_of_place(path), one);
}

bool is_rank_folder(const Listing& folder) {
  return !sharded_sets(folder).empty();
}

std::unique_ptr<StoredCheckpoint> open_rank_folder(const std::filesystem::path& folder) {
  std::vector<RankFiles> others;
  const std::vector<RankFiles> sets = sharded_sets(Listing(folder), &others);
  if (sets.empty()) {
    throw Error(ErrorCode::kUnknownFormat,
                cat(escape(folder.native()), ": no file of a rank holds sharded tensors"));
  }
  if (sets.size() == 1) return open_rank_files(folder, sets[0]);
  std::vector<CheckpointPart> parts;
  for (const RankFiles& set : sets)
    parts.push_back({.checkpoint = open_rank_files(folder, set), .name = set.name});
  Findings findings;
  for (const RankFiles& set : others) {
    findings.push_back(
        warning(ErrorCode::kExtraFile,
                "is also the file of a rank, but holds no sharded tensors: not read, "
                "and in no output but one of the same layout (reshard)",
                set.files[0].second));
  }
  return combine_checkpoints(std::move(parts),
                             {escape(folder.native()), "per-rank", "sharded-tensors"},
                             std::move(findings));
}

}  // namespace fsdp::formats
