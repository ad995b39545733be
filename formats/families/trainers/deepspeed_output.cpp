// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's folders for another number of ranks.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/families/trainers/deepspeed_outputs.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/rank_archive.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/trainers.h"
#include "formats/families/trainers/zero_layout.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats::deepspeed {
namespace {

namespace fs = std::filesystem;

Value repeated(const Value& like, std::int64_t number) {
  if (like.kind() != ValueKind::kList) return Value::integer(number);
  return Value::list(std::vector<Value>(like.items().size(), Value::integer(number)));
}

// Makes the flat tensor of a group, or of a sub-group in stage 3: of the weights in full precision
// if `state` is empty.
using MakeFlat = std::function<Value(const std::string& state, std::size_t group)>;

// The files of ZeRO's partitions for other ranks.
class ZeroOutput : public Output {
 public:
  ZeroOutput(const Checkpoint& source, fs::path destination, OutputOptions options,
             const FrameworkOptions& how, const fs::path& tag)
      : Output(source, std::move(destination), std::move(options)),
        tag_(tag),
        to_(how.world_size),
        from_(source.description().ranks) {
    const Listing listing(how.beside.value().folder);
    if (tag != listing.path()) prefix_ = name_of_place(tag) + "/";
    plan_.format = "deepspeed";
    plan_.folder = true;
    for (std::size_t t = 0; t < source.index().tensors.size(); ++t)
      numbers_.emplace(source.index().tensors[t].path, t);
    for (const StateFile& file : state_files(*folder_at(tag)))
      (file.optimizer ? optimizers_ : models_).push_back(file.name);
    const int stage = source.description().layout == "zero-3" ? 3 : 1;  // 2 is laid out like 1
    check_files(stage);
    try {
      layout_.emplace(tag_, stage, from_, models_, optimizers_);
      check_ranks();
    } catch (const Error& error) {
      const std::string where = escape(tag_.native());
      if (std::string_view(error.what()).starts_with(where)) throw;
      throw error.in(where);
    }
    count_tensors();
    for_each_file([&](const std::string& name, const RankArchive&, const Value& root) {
      plan_.files.push_back({prefix_ + name, RankArchive::file_bytes(root)});
    });
    carry(listing, how.beside->allowed_globals);
  }

 private:
  using Opened = std::unique_ptr<StoredCheckpoint>;

  Opened opened(const std::string& name) const { return open_torch_save(tag_ / name); }
  static Value root_of(const StoredCheckpoint& file) { return file.tree().value_or(Value()); }

  void check_files(int stage) const {
    const auto there = static_cast<std::int64_t>(optimizers_.size());
    const auto models = static_cast<std::int64_t>(models_.size());
    if (there == from_ && models == (stage == 3 ? from_ : 1)) return;
    throw Error(ErrorCode::kShardMissing,
                cat(escape(tag_.native()), ": has ", there, " *_optim_states.pt and ", models,
                    " *_model_states.pt, expected ", from_, " and ", stage == 3 ? from_ : 1));
  }

  static std::vector<std::int64_t> numbers_of(const std::vector<std::size_t>& owners,
                                              std::size_t group) {
    std::vector<std::int64_t> numbers;
    for (std::size_t s = 0; s < owners.size(); ++s) {
      if (owners[s] == group) numbers.push_back(static_cast<std::int64_t>(s));
    }
    return numbers;
  }

  std::size_t number_of(const KeyPath& path) const {
    const auto found = numbers_.find(path);
    if (found != numbers_.end()) return found->second;
    throw Error(ErrorCode::kShardMissing,
                cat(source_.description().path, ": ", quote(joined(path), 200),
                    ": has no elements, but other parameters have such a state"));
  }

  Value flat_of(const FlatParameters& group, std::size_t g, const std::string& state,
                std::int64_t rank, RankArchive& archive) const {
    const std::int64_t partition = layout_->partition_numel(group, g, to_);
    const std::int64_t numel = state.empty() ? layout_->lean_numel(group, g, rank, to_) : partition;
    std::vector<TensorRun> runs;
    DType dtype = DType::kFloat32;
    std::int64_t at = 0;
    for (const FlatParameter& parameter : group) {
      const KeyPath path = state.empty() ? KeyPath{"model", parameter.name}
                                         : KeyPath{"optimizer", "state", parameter.name, state};
      const std::size_t number = number_of(path);
      dtype = source_.index().tensors[number].dtype;
      TensorRun run{.tensor = number};
      if (layout_->stage() == 3) {
        const std::int64_t piece = piece_numel(parameter.numel, to_);
        run.begin = piece_begin(parameter.numel, piece, rank);
        run.end = std::min(run.begin + piece, parameter.numel);
        run.at = at;
        at += piece;
      } else {
        const std::int64_t from = rank * partition;
        run.begin = std::clamp<std::int64_t>(from - parameter.begin, 0, parameter.numel);
        run.end = std::clamp<std::int64_t>(from + partition - parameter.begin, 0, parameter.numel);
        run.at = parameter.begin + run.begin - from;
      }
      if (run.begin < run.end) runs.push_back(run);
    }
    return archive.flat(dtype, numel, std::move(runs));
  }

  // Returns the state of a flat tensor with others in the place of the flat ones.
  static Value edited_state(const Value& state, const Value& own, std::size_t group,
                            const MakeFlat& flat) {
    const auto weights = dense_tensor(own);
    return with_entries(state, [&](const std::string& name, const Value& value) {
      const auto tensor = dense_tensor(value);
      const bool is_flat = tensor && weights && tensor->shape.size() == 1 &&
                           tensor->shape[0] >= weights->shape.at(0);
      return is_flat ? flat(name, group) : value;
    });
  }

  // Returns the object of an optimizer's file for `rank` of the new ranks.
  Value optimizer_root(const Value& root, std::int64_t rank, const MakeFlat& flat) const {
    return with_entries(root, [&](const std::string& name, const Value& value) {
      return name == kOptimizer ? zero_state(value, rank, flat) : value;
    });
  }

  Value zero_state(const Value& zero, std::int64_t rank, const MakeFlat& flat) const {
    std::vector<std::size_t> owners;
    const std::vector<FlatParameters> groups = layout_->flat_groups(to_, &owners);
    const auto own = layout_->needed(zero, layout_->weights_key(), optimizers_[0]).items();
    return with_entries(zero, [&](const std::string& name, const Value& value) -> Value {
      if (name == layout_->weights_key()) {
        std::vector<Value> flats;
        for (std::size_t g = 0; g < groups.size(); ++g) flats.push_back(flat({}, g));
        return Value::list(std::move(flats));
      }
      if (name == "partition_count") return repeated(value, to_);
      if (layout_->stage() == 3)
        return name == kOptimizer ? states_of(value, own, owners, flat) : value;
      if (name == "base_optimizer_state") {
        return with_entries(value, [&](const std::string& key, const Value& inner) {
          return key == "state" ? states_by_group(inner, own, flat) : inner;
        });
      }
      if (name == "group_paddings") {
        std::vector<Value> paddings;
        for (std::size_t g = 0; g < groups.size(); ++g) {
          paddings.push_back(Value::integer(layout_->partition_numel(groups[g], g, to_) -
                                            layout_->lean_numel(groups[g], g, rank, to_)));
        }
        return Value::list(std::move(paddings));
      }
      return name == "param_slice_mappings" ? mappings(value, rank) : value;
    });
  }

  Value states_by_group(const Value& states, std::span<const Value> own,
                        const MakeFlat& flat) const {
    std::vector<Value::Entry> entries;
    for (const auto& [key, state] : entries_of(states)) {
      const auto group = static_cast<std::size_t>(key.as_int().value_or(-1));
      entries.emplace_back(
          key, group < own.size() ? edited_state(state, own[group], group, flat) : state);
    }
    return Value::dict(std::move(entries));
  }

  // Stage 3: each sub-group has the state of the first of its group in the source, with its own
  // flat tensors, and the groups have the numbers of their sub-groups.
  Value states_of(const Value& optimizer, std::span<const Value> own,
                  const std::vector<std::size_t>& owners, const MakeFlat& flat) const {
    std::vector<std::size_t> old_owners;
    (void)layout_->flat_groups(from_, &old_owners);
    return with_entries(optimizer, [&](const std::string& name, const Value& value) -> Value {
      if (name == "state") {
        std::vector<Value::Entry> states;
        for (std::size_t s = 0; s < owners.size(); ++s) {
          const auto first = static_cast<std::size_t>(std::ranges::find(old_owners, owners[s]) -
                                                      old_owners.begin());
          for (const auto& [key, state] : entries_of(value)) {
            if (key.as_int() != static_cast<std::int64_t>(first) || first >= own.size()) continue;
            states.emplace_back(Value::integer(static_cast<std::int64_t>(s)),
                                edited_state(state, own[first], s, flat));
          }
        }
        return Value::dict(std::move(states));
      }
      if (name != "param_groups") return value;
      std::vector<Value> groups;
      for (std::size_t g = 0; g < value.items().size(); ++g) {
        std::vector<Value> numbers;
        for (const std::int64_t number : numbers_of(owners, g))
          numbers.push_back(Value::integer(number));
        groups.push_back(
            with_entries(value.items()[g], [&](const std::string& option, const Value& said) {
              return option == "params" ? Value::list(numbers) : said;
            }));
      }
      return Value::list(std::move(groups));
    });
  }

  // Stages 1, 2: where in a rank's partition each parameter lies, which ds_to_universal.py reads.
  Value mappings(const Value& old, std::int64_t rank) const {
    std::vector<Value> out;
    for (std::size_t g = 0; g < layout_->groups().size(); ++g) {
      const std::int64_t partition = layout_->partition_numel(layout_->groups()[g], g, to_);
      std::vector<Value::Entry> entries;
      for (const FlatParameter& parameter : layout_->groups()[g]) {
        const std::int64_t begin = std::max(parameter.begin, rank * partition);
        const std::int64_t end =
            std::min(parameter.begin + parameter.numel, (rank + 1) * partition);
        if (begin >= end) continue;
        if (address_.as_object() == nullptr)
          throw Error(ErrorCode::kMetaType, "'param_slice_mappings' is not in each rank's file");
        ObjectData address = *address_.as_object();
        address.state = with_entries(address.state, [&](const std::string& name, const Value&) {
          return Value::integer(name == "numel" ? end - begin : begin - rank * partition);
        });
        entries.emplace_back(Value::string(parameter.name), Value::object(std::move(address)));
      }
      const bool known = g < old.items().size();
      out.push_back(known ? mapping_like(old.items()[g], std::move(entries))
                          : Value::dict(std::move(entries)));
    }
    return Value::list(std::move(out));
  }

  // Stage 3: the shapes by sub-groups of the new ranks.
  Value shapes_of(const Value& old) const {
    std::map<std::string, Value> known;
    for (const Value& group : old.items()) {
      for (const auto& [key, shape] : entries_of(group)) {
        if (key.as_string() != nullptr) known.emplace(*key.as_string(), shape);
      }
    }
    std::vector<Value> out;
    for (const FlatParameters& group : layout_->flat_groups(to_)) {
      std::vector<Value::Entry> entries;
      for (const FlatParameter& parameter : group)
        entries.emplace_back(Value::string(parameter.name), known[parameter.name]);
      out.push_back(old.items().empty() ? Value::dict(std::move(entries))
                                        : mapping_like(old.items()[0], std::move(entries)));
    }
    return Value::list(std::move(out));
  }

  // Returns the object of a model's file for `rank` of the new ranks.
  Value model_root(const Value& root,
                   const std::function<Value(const FlatParameter&)>& part) const {
    return with_entries(root, [&](const std::string& name, const Value& value) -> Value {
      if (name == "dp_world_size") return Value::integer(to_);
      if (name == "param_shapes" && layout_->stage() == 3) return shapes_of(value);
      if (name != "frozen_param_fragments" || layout_->stage() != 3 || value.is_none())
        return value;
      const Value& shapes = layout_->needed(root, "frozen_param_shapes", models_[0]);
      return with_entries(value, [&](const std::string& key, const Value&) {
        const auto shape = shape_of(layout_->needed(shapes, key, models_[0]));
        if (!shape) throw Error(ErrorCode::kMetaType, cat(quote(key, 200), ": has no shape"));
        return part({key, static_cast<std::int64_t>(numel_of(*shape)), 0});
      });
    });
  }

  // Checks that what every rank has is the same, wherever a file is made of another rank's.
  void check_ranks() {
    const auto no_flat = [](const std::string&, std::size_t) { return Value(); };
    const auto no_part = [](const FlatParameter&) { return Value(); };
    find_address();
    const auto file_of = [&](const std::string& name) {
      return read_torch_save(*folder_at(tag_)->open_member(name));
    };
    const auto check = [&](const std::vector<std::string>& names, const auto& edited) {
      const TorchFile first = file_of(names.at(0));
      const Value of_first = edited(first.root);
      for (std::size_t f = 1; f < names.size(); ++f) {
        const TorchFile other = file_of(names[f]);
        if (!saved_alike(first, of_first, other, edited(other.root))) {
          layout_->refuse(names[f], cat("holds something else than ", escape(names[0]),
                                        ", which another number of ranks cannot be given"));
        }
      }
    };
    check(optimizers_, [&](const Value& root) { return optimizer_root(root, 0, no_flat); });
    if (to_ <= from_) return;
    // Ranks other than 0 do not find shared parameters in stage 3; only zero_to_fp32.py reads them.
    check(models_, [&](const Value& root) {
      return with_entries(model_root(root, no_part),
                          [](const std::string& name, const Value& value) {
                            return name == "shared_params" ? Value() : value;
                          });
    });
  }

  // Finds an object that says where a parameter lies, the pattern of the new ones.
  void find_address() {
    if (layout_->stage() == 3) return;
    for (const std::string& name : optimizers_) {
      const Value root = root_of(*opened(name));
      const Value* const old =
          member(layout_->needed(root, kOptimizer, name), "param_slice_mappings");
      if (old == nullptr) return;
      for (const Value& group : old->items()) {
        const auto entries = mapping_entries(group);
        if (!entries || entries->empty()) continue;
        address_ = entries->front().second;
        const ObjectData* const object = address_.as_object();
        if (object == nullptr || !mapping_entries(object->state))
          layout_->refuse(name, "'param_slice_mappings' holds other objects than fragment_address");
        return;
      }
    }
    layout_->refuse(optimizers_[0],
                    "'param_slice_mappings' of no rank says where a parameter lies");
  }

  void count_tensors() {
    for (const TensorEntry& tensor : source_.index().tensors) plan_.tensor_bytes += tensor.bytes();
    plan_.tensors = source_.index().tensors.size();
    plan_.values = source_.index().values.size();
    for (const FlatParameters& group : layout_->groups()) plan_.cut_tensors += group.size();
    for (const auto& [path, number] : numbers_) {
      const auto* const top = std::get_if<std::string>(&path[0]);
      const bool state = path.size() == 4 && top != nullptr && *top == "optimizer";
      if (state && !source_.index().tensors[number].shape.empty()) ++plan_.cut_tensors;
    }
    plan_.whole_tensors = plan_.tensors - std::min(plan_.tensors, plan_.cut_tensors);
  }

  static std::string name_of_rank(const std::string& first, std::int64_t rank) {
    constexpr std::string_view kRank = "zero_pp_rank_";
    const std::size_t digits = first.find(kRank) + kRank.size();
    return cat(first.substr(0, digits), rank, first.substr(first.find('_', digits)));
  }

  // Calls `use` with the name, the archive and the object of each file of the output.
  template <typename Use>
  void for_each_file(const Use& use) const {
    const Opened optimizer = opened(optimizers_[0]);
    const Value optimizer_of_0 = root_of(*optimizer);
    const std::vector<FlatParameters> groups = layout_->flat_groups(to_);
    for (std::int64_t rank = 0; rank < to_; ++rank) {
      if (rank == 0 || layout_->stage() == 3) {
        const auto own = static_cast<std::size_t>(rank < from_ ? rank : 0);
        const std::string& name = models_.at(layout_->stage() == 3 ? own : 0);
        const Opened model = opened(name);
        RankArchive archive(source_, model.get());
        const Value root = model_root(root_of(*model), [&](const FlatParameter& frozen) {
          const std::size_t number = number_of({"model", frozen.name});
          const std::int64_t piece = piece_numel(frozen.numel, to_);
          const std::int64_t begin = piece_begin(frozen.numel, piece, rank);
          const std::int64_t end = std::min(begin + piece, frozen.numel);
          std::vector<TensorRun> runs;
          if (begin < end) runs.push_back({number, begin, end, 0});
          return archive.flat(source_.index().tensors[number].dtype, piece, std::move(runs));
        });
        use(layout_->stage() == 3 ? name_of_rank(models_[0], rank) : name, archive, root);
      }
      RankArchive archive(source_, optimizer.get());
      const Value root =
          optimizer_root(optimizer_of_0, rank, [&](const std::string& state, std::size_t group) {
            return flat_of(groups.at(group), group, state, rank, archive);
          });
      use(name_of_rank(optimizers_[0], rank), archive, root);
    }
  }

  void carry(const Listing& listing, const std::set<std::string>& allowed) {
    std::set<std::string> wanted;
    if (prefix_.empty()) {
      for (const std::string& name : listing.names) {
        if (!state_file(name)) wanted.insert(name);
      }
    } else {
      const std::vector<std::string> beside = beside_tags(*listing.folder);
      wanted.insert(beside.begin(), beside.end());
      wanted.insert({"latest", kProgram});
    }
    carried_ = carried_files(listing, {.from_ranks = from_,
                                       .to_ranks = to_,
                                       .allowed_globals = allowed,
                                       .programs = {kProgram},
                                       .wanted = [&](const std::string& name) {
                                         return wanted.contains(name) || name == kProgram;
                                       }});
    carried_.plan(plan_);
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    for_each_file([&](const std::string& name, const RankArchive& archive, const Value& root) {
      OutputFile& file = folder.add_file(prefix_ + name);
      total += archive.write(root, file, options.after(total), chunks_);
      file.finish(options_.sync);
    });
    carried_.write(folder, options_.sync);
  }

  fs::path tag_;
  std::string prefix_;  // of the tag folder's files
  std::int64_t to_;
  std::int64_t from_;
  std::vector<std::string> models_;  // by rank
  std::vector<std::string> optimizers_;
  std::optional<ZeroLayout> layout_;
  std::map<KeyPath, std::size_t> numbers_;
  Value address_;
  CarriedFiles carried_;
  std::shared_ptr<ChunkCache> chunks_ = std::make_shared<ChunkCache>();
};

}  // namespace

std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& /*content*/,
                                    const fs::path& destination, const FrameworkOptions& options) {
  if (!options.beside) {
    throw Error(ErrorCode::kUsage, cat(source.description().path,
                                       ": DeepSpeed's folders are made of such folders alone"));
  }
  OutputOptions output = options.output;
  output.replaced = is_carried_name;
  const Listing listing(options.beside->folder);
  if (const auto universal = universal_folder(listing)) {
    return plan_universal_output(source, destination, std::move(output), options, *universal);
  }
  const fs::path tag = tag_folder(listing).value();
  return std::make_unique<ZeroOutput>(source, destination, std::move(output), options, tag);
}

}  // namespace fsdp::formats::deepspeed
