// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/trainers/fairscale_metadata.h"
#include "formats/families/trainers/fairscale_shards.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::fairscale {
namespace {

namespace fs = std::filesystem;

// The most entries of one state: each is repeated for every parameter of a flat one, and optimizers
// have only a few.
constexpr std::size_t kMaxKinds = 64;

bool holds_tensor(const Value& value) {
  const std::vector<Leaf> leaves = leaves_of(value);
  return std::ranges::any_of(leaves, [](const Leaf& leaf) {
    return dense_tensor(leaf.value) || !special_tensor(leaf.value).empty();
  });
}

class FairscaleCheckpoint : public Shards {
 public:
  FairscaleCheckpoint(std::shared_ptr<const Folder> opened, const ShardSet& set)
      : Shards(std::move(opened), set) {
    if (first().shard.way.empty()) {
      add_weights({});
    } else {
      // A file that holds nothing else becomes the result of consolidate_shard_weights, without
      // keys around it.
      alone_ = is_alone(first().shard);
      walk(first().metadata_object, {}, 0);
    }
    note_left_out();
    description_ = {escape(folder().path().native()), "per-rank", "fairscale", std::nullopt,
                    static_cast<std::int64_t>(ranks().size())};
  }

 private:
  // The place of a parameter.
  struct Origin {
    std::size_t backing;
    std::int64_t begin;  // of the backing parameter
    const Original* original;
  };

  static bool is_alone(const Shard& shard) {
    return std::ranges::all_of(shard.way, [&](const Value* mapping) {
      const std::size_t wanted = mapping == shard.way.back() ? 2 : 1;
      return mapping_entries(*mapping)->size() == wanted;
    });
  }

  // Adds everything in the lowest rank's file, with the weights joined.
  void walk(const Value& mapping, const KeyPath& path, std::size_t depth) {
    const auto entries = mapping_entries(mapping);
    for (const auto& [key, value] : *entries) {
      KeyPath below = path;
      below.emplace_back(joined_key(key, first().file));
      if (&value == first().shard.weights) {
        add_weights(alone_ ? KeyPath() : below);
      } else if (&value == first().shard.metadata) {
        continue;
      } else if (depth + 1 < first().shard.way.size() && &value == first().shard.way[depth + 1]) {
        walk(value, below, depth + 1);
      } else if (is_optimizer(value)) {
        add_optimizer(value, below);
      } else if (holds_tensor(value)) {
        left_out_.push_back(joined(below));
      } else {
        add_value(below, value, first().file);
      }
    }
  }

  void add_weights(const KeyPath& path) {
    std::unordered_map<std::string, Origin> by_name;
    for (std::size_t b = 0; b < first().metadata.backings.size(); ++b) {
      const Backing& backing = first().metadata.backings[b];
      const std::vector<Held> held = held_of(b, backing.key, weight_of);
      if (backing.own && ranks().size() > 1) own_.push_back(backing.key);
      std::int64_t begin = 0;
      for (const Original& original : backing.originals) {
        add_original(path, original.name, original, begin, held);
        by_name.emplace(original.name, Origin{b, begin, &original});
        begin += original.numel;
      }
    }
    // consolidate_shard_weights returns the further names of the last unit only.
    for (const auto& [kept, further] : first().metadata.tied) {
      const auto found = by_name.find(kept);
      if (found == by_name.end()) {
        fail(first().file, ErrorCode::kMetaType,
             cat(quote(further, 200), " is tied to ", quote(kept, 200), ", which is not there"));
      }
      const Origin& origin = found->second;
      add_original(
          path, further, *origin.original, origin.begin,
          held_of(origin.backing, first().metadata.backings[origin.backing].key, weight_of));
    }
    note_unknown(path, by_name);
    for (const std::string& name : first().metadata.buffers) {
      const auto buffer = first().weights.find(name);
      const auto tensor =
          buffer == first().weights.end() ? std::nullopt : dense_tensor(*buffer->second);
      if (!tensor)
        fail(first().file, ErrorCode::kMetaType, cat("has no buffer ", quote(name, 200)));
      add(path, name, tensor->dtype, tensor->shape,
          {part_of(whole_box(tensor->shape), first().file, *tensor)});
    }
  }

  // Tied names of parameters that are not flattened are not in any metadata.
  void note_unknown(const KeyPath& path, const std::unordered_map<std::string, Origin>& by_name) {
    std::set<std::string> known(first().metadata.buffers.begin(), first().metadata.buffers.end());
    for (const Backing& backing : first().metadata.backings) known.insert(backing.key);
    for (const auto& [key, value] : first().weights) {
      if (known.contains(key) || by_name.contains(key)) continue;
      KeyPath whole = path;
      whole.emplace_back(key);
      left_out_.push_back(joined(whole));
    }
    std::ranges::sort(left_out_);
  }

  static const Value* weight_of(const Rank& rank, const Backing& backing) {
    return rank.weights.at(backing.key);
  }

  // Adds an optimizer of torch.optim over the parameters that FSDP made.  Its states are cut like
  // these parameters, and are joined in the same way.  The result is an optimizer over the original
  // parameters, by name.
  void add_optimizer(const Value& optimizer, const KeyPath& path) {
    const std::vector<std::size_t> numbers =
        numbers_in_order(first().metadata, *first().shard.weights);
    const std::string unfit = why_not_joined(optimizer, numbers.size());
    if (!unfit.empty()) {
      not_joined_.push_back(joined(path) + " (" + unfit + ")");
      return;
    }
    std::map<std::uint32_t, std::vector<const Value*>> states;  // of each rank's file
    for (const auto& [rank, own] : ranks()) {
      const Value* value = at_path(own.metadata_object, path);
      if (value == nullptr || !is_optimizer(*value) ||
          !why_not_joined(*value, numbers.size()).empty()) {
        fail(own.file, ErrorCode::kMetaType,
             cat(quote(joined(path), 200), " is not an optimizer state like those of other ranks"));
      }
      states.emplace(own.file, states_of(*value, numbers.size()));
    }
    const auto members = mapping_entries(optimizer);
    for (const auto& [key, value] : *members) {
      KeyPath below = path;
      below.emplace_back(joined_key(key, first().file));
      if (*key.as_string() == "state") {
        for (std::size_t b = 0; b < numbers.size(); ++b) {
          const std::vector<State> kinds = states_of_backing(b, numbers[b], states);
          compare_numbers(below, b, numbers[b], kinds, states);
          add_states(below, b, kinds);
        }
      } else if (*key.as_string() == "param_groups") {
        add_group(below, value.items()[0]);
      } else if (holds_tensor(value)) {
        left_out_.push_back(joined(below));
      } else {
        add_value(below, value, first().file);
      }
    }
  }

  // One kind of state of a backing parameter: its value on the first rank that has it, and its
  // parts.
  struct State {
    std::string name;
    const Value* value;
    std::uint32_t file;
    std::optional<TensorValue> tensor;
    std::vector<Held> held;  // if it is cut like the parameter
  };

  // Returns the kinds of state of backing parameter `b`, which has the number `number` in the
  // optimizer.  If any rank has a kind of state, all ranks should have it: missing parts are holes.
  std::vector<State> states_of_backing(
      std::size_t b, std::size_t number,
      const std::map<std::uint32_t, std::vector<const Value*>>& states) const {
    std::vector<State> kinds;
    std::set<std::string> known;
    for (const auto& [file, of_rank] : states) {
      if (of_rank[number] == nullptr) continue;
      const auto entries = mapping_entries(*of_rank[number]);
      for (const auto& [key, value] : *entries) {
        const std::string name = joined_key(key, file);
        if (!known.insert(name).second) continue;
        if (kinds.size() == kMaxKinds) {
          fail(file, ErrorCode::kLimitNodes,
               cat("state ", number, " of an optimizer has more than ", kMaxKinds, " entries"));
        }
        kinds.push_back({name, &value, file, dense_tensor(value), {}});
      }
    }
    for (State& kind : kinds) {
      if (!kind.tensor || kind.tensor->shape.empty()) continue;
      kind.held =
          held_of(b, cat("state ", number, ", ", kind.name), [&](const Rank& rank, const Backing&) {
            const Value* own = states.at(rank.file)[number];
            return own == nullptr ? nullptr : member(*own, kind.name);
          });
    }
    return kinds;
  }

  // Values that all ranks share, such as the step count, are read from the first rank.  A rank with
  // another value is from another save.
  void compare_numbers(const KeyPath& path, std::size_t b, std::size_t number,
                       const std::vector<State>& kinds,
                       const std::map<std::uint32_t, std::vector<const Value*>>& states) {
    const Backing& backing = first().metadata.backings[b];
    if (backing.own || backing.originals.empty()) return;
    for (const State& kind : kinds) {
      if (!kind.held.empty()) continue;
      for (const auto& [file, of_rank] : states) {
        const Value* const own =
            of_rank[number] == nullptr ? nullptr : member(*of_rank[number], kind.name);
        if (own == nullptr || !differs(kind, *own, file) || !apart_.insert(file).second) continue;
        KeyPath key = path;
        key.emplace_back(backing.originals.front().name);
        key.emplace_back(kind.name);
        findings_.push_back(
            warning(ErrorCode::kMismatch,
                    cat("differs from the number in ", escape(index_.files[kind.file].name),
                        ": the files are from two saves"),
                    index_.files[file].name, joined(key)));
      }
    }
  }

  bool differs(const State& kind, const Value& own, std::uint32_t file) const {
    const auto tensor = dense_tensor(own);
    if (kind.tensor && tensor) {
      return kind.tensor->dtype != tensor->dtype || kind.tensor->shape != tensor->shape ||
             !are_equal(part_of(Box(), kind.file, *kind.tensor), part_of(Box(), file, *tensor));
    }
    const auto one = kind.value->as_int();
    const auto other = own.as_int();
    return one && other && *one != *other;
  }

  void add_states(const KeyPath& path, std::size_t b, const std::vector<State>& kinds) {
    std::int64_t begin = 0;
    for (const Original& original : first().metadata.backings[b].originals) {
      KeyPath below = path;
      below.emplace_back(original.name);
      for (const State& kind : kinds) {
        if (!kind.held.empty()) {
          add_original(below, kind.name, original, begin, kind.held);
        } else if (kind.tensor) {  // a step count, shared by all parameters
          add(below, kind.name, kind.tensor->dtype, {}, {part_of(Box(), kind.file, *kind.tensor)});
        } else {
          KeyPath whole = below;
          whole.emplace_back(kind.name);
          if (holds_tensor(*kind.value)) {
            left_out_.push_back(joined(whole));  // a part of something unknown
          } else {
            add_value(std::move(whole), *kind.value, kind.file);
          }
        }
      }
      begin += original.numel;
    }
  }

  // Adds the only group of an optimizer, with its parameters by name.
  void add_group(const KeyPath& path, const Value& group) {
    const auto options = mapping_entries(group);
    for (const auto& [key, value] : *options) {
      KeyPath below = path;
      below.emplace_back(std::int64_t{0});
      below.emplace_back(joined_key(key, first().file));
      add_value(below, *key.as_string() == "params" ? names_of(first().metadata) : value,
                first().file);
    }
  }

  void note_left_out() {
    const auto note = [&](ErrorCode code, const std::vector<std::string>& keys,
                          const char* message) {
      SomeNames names;
      for (const std::string& key : keys) names.add(escape(key));
      if (names.count() != 0) findings_.push_back(warning(code, message + names.text()));
    };
    note(ErrorCode::kExtraFile, left_out_,
         "each rank has its own part, without metadata to join them by; in no output: ");
    note(
        ErrorCode::kExtraFile, not_joined_,
        "each rank has its own part of the optimizer's state, which is not joined; in no output: ");
    note(ErrorCode::kRank, own_, "each rank has its own; only the lowest rank's is read: ");
  }

  bool alone_ = false;
  std::vector<std::string> left_out_;
  std::vector<std::string> not_joined_;
  std::vector<std::string> own_;
  std::set<std::uint32_t> apart_;  // files with other shared values than the first
};

}  // namespace

bool is_fairscale_folder(const Listing& folder) {
  return !shard_sets(folder, nullptr).empty();
}

std::unique_ptr<StoredCheckpoint> open_fairscale(const fs::path& folder) {
  std::vector<std::string> others;
  const std::vector<ShardSet> sets = shard_sets(Listing(folder), &others);
  if (sets.size() == 1 && others.empty())
    return std::make_unique<FairscaleCheckpoint>(folder_at(folder), sets[0]);
  std::vector<CheckpointPart> parts;
  for (const ShardSet& set : sets) {
    parts.push_back({.checkpoint = std::make_unique<FairscaleCheckpoint>(folder_at(folder), set),
                     .name = sets.size() == 1 ? "" : set.weights.name});
  }
  Findings findings;
  for (const std::string& name : others) {
    findings.push_back(warning(ErrorCode::kExtraFile,
                               "is also the file of a rank, but holds no shard metadata: left out",
                               name));
  }
  return combine_checkpoints(std::move(parts), {escape(folder.native()), "per-rank", "fairscale"},
                             std::move(findings));
}

}  // namespace fsdp::formats::fairscale
