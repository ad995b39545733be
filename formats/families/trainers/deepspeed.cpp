// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::deepspeed {
namespace {

constexpr std::string_view kStageNames[] = {"disabled", "optimizer_states", "gradients", "weights"};

// Returns a number, or that of a member of ZeroStageEnum.  The pickle makes the member from its
// number or, in newer Pythons, takes it from the class by its name.
std::optional<std::int64_t> number_of(const Value& value) {
  const ObjectData* object = value.as_object();
  if (object == nullptr) return value.as_int();
  const auto args = object->args.items();
  if (args.size() == 1) return args[0].as_int();
  const std::string* name = args.size() == 2 ? args[1].as_string() : nullptr;
  if (name == nullptr) return std::nullopt;
  const auto* const found = std::ranges::find(kStageNames, *name);
  if (found == std::end(kStageNames)) return std::nullopt;
  return found - std::begin(kStageNames);
}

class DeepSpeedCheckpoint : public ModelFiles {
 public:
  // Reads every file except its storages, and compares stages and rank counts.
  // Throws: kUnsupported, kMetaType, kShardMissing, kRank, kKey, kOverflow; what add_file throws.
  DeepSpeedCheckpoint(std::shared_ptr<const Folder> opened, const std::vector<StateFile>& files)
      : ModelFiles(std::move(opened)) {
    refuse_other_layouts(files);
    std::vector<std::string> names;
    for (const StateFile& file : files) names.push_back(file.name);
    expect_files(names);
    for (const StateFile& file : files) {
      if (!file.optimizer) add_model_file(file);
    }
    for (const StateFile& file : files) {
      if (file.optimizer) add_optimizer_file(file);
    }
    read_stages();
    read_parameters();
    add_model();
    add_optimizer();
    add_trainer_state();
    description_ = {escape(folder().path().native()), "deepspeed", cat("zero-", stage_), version(),
                    ranks_};
  }

 private:
  const Value& zero_state(std::uint32_t file) const {
    return *member(root(file), "optimizer_state_dict");
  }

  // Returns the weights in full precision, by rank.  Throws: kMetaType, kType.
  FlatGroupsByRank master_weights() const {
    FlatGroupsByRank all;
    const std::string_view name =
        stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    for (const auto& [rank, file] : optimizers_) {
      auto groups = flat_groups(file, name);
      if (!groups) fail(ErrorCode::kMetaType, file, cat("has no list '", name, "'"));
      all.emplace(rank, std::move(*groups));
    }
    return all;
  }

  // Adds a finding if the flat tensors hold more or less than the parameters: the tensors were then
  // made from other names and shapes.
  void check_sizes(const FlatGroupsByRank& weights) {
    if (stage_ == 3) {
      for (const auto& [rank, groups] : weights) {
        std::int64_t numel = 0;
        for (const TensorValue& tensor : groups.tensors) numel = advanced(numel, tensor.shape[0]);
        if (numel != rank_numel_)
          return note_size(cat("the groups of rank ", rank), rank_numel_, numel);
      }
      return;
    }
    for (const auto& [rank, groups] : weights) {
      if (groups.tensors.size() != group_numel_.size()) {
        fail(ErrorCode::kMetaType, groups.file,
             cat("holds ", groups.tensors.size(), " groups, 'param_shapes' ", group_numel_.size()));
      }
    }
    if (static_cast<std::int64_t>(weights.size()) != ranks_) {
      for (std::size_t g = 0; g < group_numel_.size(); ++g) check_last(g, *weights.rbegin());
      return;
    }
    // Padding fills each group up to a multiple of this, but may be missing.
    const std::int64_t align = 2 * ranks_;
    const auto blocks = [&](std::int64_t numel) {
      return numel / align + (numel % align != 0 ? 1 : 0);
    };
    for (std::size_t g = 0; g < group_numel_.size(); ++g) {
      std::int64_t numel = 0;
      for (const auto& [rank, groups] : weights)
        numel = advanced(numel, groups.tensors[g].shape[0]);
      if (blocks(numel) != blocks(group_numel_[g]))
        return note_size(cat("group ", g), group_numel_[g], numel);
    }
  }

  // Returns the elements of each rank's partition of a group if only the last rank is there, whose
  // own may lack padding; else 0.
  std::int64_t partition_of(std::size_t group) const {
    if (ranks_ == 1 || optimizers_.begin()->first != ranks_ - 1 || group >= group_numel_.size())
      return 0;
    const std::int64_t align = 2 * ranks_;
    return piece_numel(group_numel_[group], align) * 2;
  }

  // Throws: kShape if the last rank's partition is neither padded nor ends with the group.
  void check_last(std::size_t group, const FlatGroupsByRank::value_type& last) const {
    const std::int64_t partition = partition_of(group);
    const std::int64_t found = last.second.tensors[group].shape[0];
    const std::int64_t before = partition * (ranks_ - 1);
    const std::int64_t rest = std::max<std::int64_t>(group_numel_[group] - before, 0);
    if (partition == 0 || found == partition || found == rest) return;
    fail(ErrorCode::kShape, last.second.file,
         cat("holds ", found, " elements of group ", group, ", expected ", partition, " or ", rest,
             ": where they belong is not known without the other ranks' files"));
  }

  void note_size(const std::string& what, std::int64_t expected, std::int64_t found) {
    findings_.push_back({.code = ErrorCode::kShape,
                         .message = cat("the parameters in 'param_shapes' take ", expected,
                                        " elements of ", what, ", which holds ", found),
                         .file = index_.files[model_file()].name});
  }

  void refuse_other_layouts(const std::vector<StateFile>& files) const {
    const std::string where = escape(folder().path().native());
    bool optimizer = false;
    for (const StateFile& file : files) {
      optimizer = optimizer || (file.optimizer && !file.other);
      if (file.other) {
        throw Error(ErrorCode::kUnsupported,
                    cat(where, ": ", quote(file.name),
                        " belongs to a pipeline or to experts, whose parts are not joined here"));
      }
      if (file.model_rank != 0) {
        throw Error(
            ErrorCode::kUnsupported,
            cat(where, ": ", quote(file.name), " is of tensor parallel rank ", file.model_rank,
                ": which dimension each layer is cut along is not in the checkpoint"));
      }
    }
    if (!optimizer) {
      throw Error(ErrorCode::kShardMissing,
                  cat(where,
                      ": has no *_optim_states.pt, where ZeRO keeps the weights in full "
                      "precision; open the *_model_states.pt file itself for the others"));
    }
  }

  void add_optimizer_file(const StateFile& file) {
    const std::uint32_t number = add_file(file.name, file.rank.value_or(0));
    if (!optimizers_.emplace(file.rank.value_or(0), number).second)
      fail(ErrorCode::kMetaType, number, cat("is a second file of rank ", file.rank.value_or(0)));
    const Value* state = member(root(number), "optimizer_state_dict");
    if (state == nullptr || member(*state, "zero_stage") == nullptr) {
      fail(ErrorCode::kMetaType, number,
           "has no 'optimizer_state_dict' with a 'zero_stage', as ZeRO's optimizer states do");
    }
  }

  void read_stages() {
    if (models_.empty()) {
      throw Error(ErrorCode::kShardMissing, cat(escape(folder().path().native()),
                                                ": has no *_model_states.pt, which names the "
                                                "parameters"));
    }
    for (const auto& [rank, file] : optimizers_) {
      const auto stage = number_of(*member(zero_state(file), "zero_stage"));
      if (!stage || *stage < 1 || *stage > 3)
        fail(ErrorCode::kUnsupported, file, "is not of ZeRO stage 1, 2 or 3");
      const Value* partitions = member(zero_state(file), "partition_count");
      std::optional<std::int64_t> count;
      if (partitions != nullptr && partitions->kind() == ValueKind::kList) {
        for (const Value& item : partitions->items()) {
          if (count && number_of(item) != count) {
            fail(ErrorCode::kUnsupported, file,
                 "groups have different partition counts, as those of experts do");
          }
          count = number_of(item);
        }
      } else if (partitions != nullptr) {
        count = number_of(*partitions);
      }
      if (!count || *count < 1 || *count > kMaxRanks)
        fail(ErrorCode::kMetaType, file, "has no valid 'partition_count'");
      if (ranks_ != 0 && (*count != ranks_ || *stage != stage_)) {
        fail(ErrorCode::kMetaType, file,
             cat("is of stage ", *stage, " on ", *count, " ranks, other files are of stage ",
                 stage_, " on ", ranks_, ": the files are from two saves"));
      }
      ranks_ = *count;
      stage_ = *stage;
      if (rank >= ranks_) {
        fail(ErrorCode::kRank, file,
             cat("is of rank ", rank, ", but the checkpoint is of ", ranks_, " ranks"));
      }
    }
    cut_ = stage_ == 3;
    note_missing();
  }

  void note_missing() {
    const SomeNames missing = missing_ranks(optimizers_, ranks_);
    if (missing.count() == 0) return;
    std::int64_t first = 0;
    while (optimizers_.contains(first)) ++first;
    const auto& [rank, there] = *optimizers_.begin();
    std::string file = index_.files[there].name;
    const std::string own = cat("rank_", rank, "_");
    const std::size_t at = file.find(own);
    if (at != file.npos) file.replace(at, own.size(), cat("rank_", first, "_"));
    findings_.push_back({.code = ErrorCode::kShardMissing,
                         .message = cat("the checkpoint is of ", ranks_,
                                        " ranks; missing *_optim_states.pt: rank ", missing.text()),
                         .file = std::move(file)});
  }

  void read_parameters() {
    const Value* groups = member(model_root(), "param_shapes");
    if (groups == nullptr || groups->kind() != ValueKind::kList)
      fail(ErrorCode::kMetaType, model_file(), "has no list 'param_shapes'");
    const Value* paddings =
        member(zero_state(optimizers_.begin()->second), "param_alignment_paddings");
    std::int64_t rank_offset = 0;
    for (std::size_t g = 0; g < groups->items().size(); ++g) {
      const auto entries = mapping_entries(groups->items()[g]);
      if (!entries) fail(ErrorCode::kMetaType, model_file(), "'param_shapes' holds no dicts");
      std::vector<std::int64_t> padding;
      if (stage_ < 3 && paddings != nullptr && g < paddings->items().size())
        padding = integers(paddings->items()[g]).value_or(std::vector<std::int64_t>());
      std::int64_t offset = 0;
      std::size_t position = 0;
      group_names_.emplace_back();
      for (const auto& [key, value] : *entries) {
        const auto shape = shape_of(value);
        if (key.as_string() == nullptr || !shape)
          fail(ErrorCode::kMetaType, model_file(), "'param_shapes' holds no names and shapes");
        Parameter parameter{*key.as_string(), *shape,
                            static_cast<std::int64_t>(checked_numel(*shape, "parameter")), g,
                            stage_ < 3 ? offset : rank_offset};
        offset = advanced(offset, parameter.numel);
        rank_offset = advanced(rank_offset, piece_numel(parameter.numel, ranks_));
        if (position < padding.size()) offset = advanced(offset, padding[position]);
        ++position;
        group_names_.back().push_back(parameter.name);
        if (!parameters_.emplace(parameter.name, parameter).second) {
          fail(ErrorCode::kKey, model_file(),
               cat("parameter ", quote(parameter.name, 200), " is listed twice"));
        }
      }
      group_numel_.push_back(offset);
    }
    rank_numel_ = rank_offset;
  }

  std::int64_t advanced(std::int64_t offset, std::int64_t count) const {
    std::int64_t result = 0;
    if (count < 0 || __builtin_add_overflow(offset, count, &result))
      fail(ErrorCode::kOverflow, model_file(), "parameters have more than 2^63 - 1 elements");
    return result;
  }

  // Returns the one-dimensional tensors of a list.
  std::optional<FlatGroups> flat_groups(std::uint32_t file, std::string_view name) const {
    const Value* list = member(zero_state(file), name);
    if (list == nullptr || list->kind() != ValueKind::kList) return std::nullopt;
    FlatGroups groups{file, {}};
    for (const Value& item : list->items()) {
      const auto tensor = dense_tensor(item);
      if (!tensor || tensor->shape.size() != 1)
        fail(ErrorCode::kType, file, cat("'", name, "' holds other values than flat tensors"));
      groups.tensors.push_back(*tensor);
    }
    return groups;
  }

  // Returns the places of a parameter's elements in flat tensors of all ranks.
  std::vector<Part> parts_of(const Parameter& parameter, const FlatGroupsByRank& ranks) const {
    std::vector<Part> parts;
    for (const FlatRun& run :
         stage_ == 3 ? runs_by_parameter(parameter, ranks, ranks_)
                     : runs_by_group(parameter, ranks, partition_of(parameter.group))) {
      add_flat_parts(parts, parameter.shape, run.begin, run.end, run.file, *run.tensor, run.from);
    }
    return parts;
  }

  static DType dtype_of(const FlatGroupsByRank& ranks) {
    for (const auto& [rank, groups] : ranks) {
      for (const TensorValue& tensor : groups.tensors) return tensor.dtype;
    }
    return DType::kFloat32;
  }

  void check_dtypes(const FlatGroupsByRank& ranks) const {
    const DType dtype = dtype_of(ranks);
    for (const auto& [rank, groups] : ranks) {
      for (const TensorValue& tensor : groups.tensors) {
        if (tensor.dtype != dtype) {
          fail(ErrorCode::kDtype, groups.file,
               cat("holds ", torch_name(tensor.dtype), " where other ranks hold ",
                   torch_name(dtype)));
        }
      }
    }
  }

  void add_model() {
    const auto weights = master_weights();
    check_dtypes(weights);
    check_sizes(weights);
    const auto add = [&](const std::string& name, const std::string& source) {
      const auto parameter = parameters_.find(source);
      if (parameter == parameters_.end()) return false;
      add_tensor({"model", name}, dtype_of(weights), parameter->second.shape,
                 parts_of(parameter->second, weights));
      return true;
    };
    std::set<std::string> done = add_module(add);
    for (const auto& names : group_names_) {
      for (const std::string& name : names) {
        if (done.insert(name).second) add(name, name);
      }
    }
  }

  const Value* base_state(std::uint32_t file) const {
    return member(zero_state(file), stage_ == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  }

  // Returns the state of group `group`: under its number, or in a list if the checkpoint is
  // elastic.
  static const Value* group_state(const Value& base, std::size_t group) {
    if (base.kind() == ValueKind::kList)
      return group < base.items().size() ? &base.items()[group] : nullptr;
    const Value* state = member(base, "state");
    const auto entries = state == nullptr ? std::nullopt : mapping_entries(*state);
    if (!entries) return nullptr;
    for (const auto& [key, value] : *entries) {
      if (key.as_int() == static_cast<std::int64_t>(group)) return &value;
    }
    return nullptr;
  }

  // Returns the names of a parameter's states, in order of first appearance.
  std::vector<std::string> state_names(std::size_t groups) const {
    std::vector<std::string> names;
    for (const auto& [rank, file] : optimizers_) {
      const Value* base = base_state(file);
      for (std::size_t g = 0; base != nullptr && g < groups; ++g) {
        const Value* state = group_state(*base, g);
        const auto entries = state == nullptr ? std::nullopt : mapping_entries(*state);
        if (!entries) continue;
        for (const auto& [key, value] : *entries) {
          const std::string* name = key.as_string();
          if (name != nullptr && std::ranges::find(names, *name) == names.end())
            names.push_back(*name);
        }
      }
    }
    return names;
  }

  void add_optimizer() {
    const auto weights = master_weights();
    std::size_t groups = group_names_.size();
    for (const auto& [rank, flat] : weights) groups = std::max(groups, flat.tensors.size());
    const std::vector<std::string> names = state_names(groups);
    // For each kind of state: the flat tensors of all ranks, or the value shared by a whole group.
    std::vector<FlatGroupsByRank> flat(names.size());
    std::vector<std::map<std::size_t, std::pair<std::uint32_t, Value>>> shared(names.size());
    for (std::size_t n = 0; n < names.size(); ++n) {
      for (const auto& [rank, file] : optimizers_) {
        const Value* base = base_state(file);
        FlatGroups found{file, {}};
        for (std::size_t g = 0; base != nullptr && g < groups; ++g) {
          const Value* state = group_state(*base, g);
          const Value* value = state == nullptr ? nullptr : member(*state, names[n]);
          if (value == nullptr) continue;
          const auto tensor = dense_tensor(*value);
          const auto& own = weights.at(rank).tensors;
          if (tensor && tensor->shape.size() == 1 && found.tensors.size() == g && g < own.size() &&
              tensor->shape[0] >= own[g].shape[0]) {
            found.tensors.push_back(*tensor);
          } else {
            shared[n].try_emplace(g, file, *value);
          }
        }
        if (!found.tensors.empty()) flat[n].emplace(rank, std::move(found));
      }
      check_dtypes(flat[n]);
    }
    for (const auto& group : group_names_) {
      for (const std::string& name : group) {
        const Parameter& parameter = parameters_.at(name);
        for (std::size_t n = 0; n < names.size(); ++n) {
          const KeyPath path = {"optimizer", "state", name, names[n]};
          if (!flat[n].empty()) {
            add_tensor(path, dtype_of(flat[n]), parameter.shape, parts_of(parameter, flat[n]));
          } else if (!shared[n].empty()) {
            add_shared_state(path, shared[n], stage_ == 3 ? 0 : parameter.group);
          }
        }
      }
    }
    const std::uint32_t first = optimizers_.begin()->second;
    const Value* base = base_state(first);
    add_param_groups(base == nullptr ? nullptr : member(*base, "param_groups"), first,
                     group_names_);
  }

  // Adds a step count or similar value.  Each group has one; in stage 3, whose groups differ from
  // the optimizer's, all are at the same step.
  void add_shared_state(const KeyPath& path,
                        const std::map<std::size_t, std::pair<std::uint32_t, Value>>& by_group,
                        std::size_t group) {
    const auto found = by_group.find(group);
    if (found == by_group.end()) return;
    const auto& [file, value] = found->second;
    if (const auto tensor = dense_tensor(value)) {
      add_tensor(path, tensor->dtype, tensor->shape,
                 {part_of(whole_box(tensor->shape), file, *tensor)});
    } else {
      add_value(path, value, file);
    }
  }

  std::map<std::int64_t, std::uint32_t> optimizers_;  // files by rank
  std::int64_t stage_ = 0;
  std::map<std::string, Parameter> parameters_;
  std::vector<std::vector<std::string>> group_names_;  // names of each group's parameters, in order
  std::vector<std::int64_t> group_numel_;  // stages 1, 2: of each group's parameters and gaps
  std::int64_t rank_numel_ = 0;            // stage 3: of each rank's groups
};

std::unique_ptr<StoredCheckpoint> open_tag(const std::filesystem::path& path) {
  auto folder = folder_at(path);
  const std::vector<StateFile> files = state_files(*folder);
  // Without ZeRO there is one file, which names no partitions.
  if (files.size() == 1 && !files[0].optimizer && !files[0].other) {
    auto one = open_torch_save(folder->path() / files[0].name);
    const auto tree = one->tree();
    const Value* shapes = tree ? member(*tree, "param_shapes") : nullptr;
    if (shapes == nullptr || shapes->is_none()) return one;
  }
  return std::make_unique<DeepSpeedCheckpoint>(std::move(folder), files);
}

}  // namespace

bool is_deepspeed_folder(const Listing& folder) {
  return tag_folder(folder).has_value();
}

std::unique_ptr<StoredCheckpoint> open_deepspeed(const std::filesystem::path& path) {
  const std::filesystem::path tag = tag_folder(Listing(path)).value_or(path);
  auto checkpoint = open_tag(tag);
  return tag == path ? std::move(checkpoint) : with_trainer_files(std::move(checkpoint), path);
}

}  // namespace fsdp::formats::deepspeed
