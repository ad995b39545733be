// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/deepspeed.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/torch/checkpoint.h"
#include "formats/families/trainers/deepspeed_names.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/zero_files.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::deepspeed {
namespace {

class DeepSpeedCheckpoint : public ZeroFiles {
 public:
  DeepSpeedCheckpoint(std::shared_ptr<const Folder> opened, const std::vector<StateFile>& files)
      : ZeroFiles(std::move(opened), files) {
    add_model();
    add_optimizer();
    add_trainer_state();
    description_ = {escape(folder().path().native()), "deepspeed", cat("zero-", stage_), version(),
                    ranks_};
  }

 private:
  // Returns the places of a parameter's elements in flat tensors of all ranks.
  std::vector<Part> parts_of(const Parameter& parameter, const FlatGroupsByRank& ranks) const {
    std::vector<Part> parts;
    for (const FlatRun& run : stage_ == 3 ? runs_by_parameter(parameter, ranks, ranks_)
                                          : runs_by_group(parameter, ranks)) {
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
          if (name != nullptr && std::find(names.begin(), names.end(), *name) == names.end())
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
};

}  // namespace

bool is_deepspeed_folder(const std::filesystem::path& folder) {
  return tag_folder(folder).has_value();
}

namespace {

std::unique_ptr<Checkpoint> open_tag(const std::filesystem::path& path) {
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

std::unique_ptr<Checkpoint> open_deepspeed(const std::filesystem::path& path) {
  const std::filesystem::path tag = tag_folder(path).value_or(path);
  auto checkpoint = open_tag(tag);
  return tag == path ? std::move(checkpoint) : with_trainer_files(std::move(checkpoint), path);
}

std::unique_ptr<Checkpoint> with_trainer_files(std::unique_ptr<Checkpoint> checkpoint,
                                               const std::filesystem::path& root) {
  TrainerFiles beside = trainer_files(root, beside_tags(*folder_at(root)), false);
  if (beside.parts.empty() && beside.findings.empty()) return checkpoint;
  CheckpointDescription description = checkpoint->description();
  std::vector<CheckpointPart> parts;
  const std::string tag = std::filesystem::path(description.path).filename().native() + "/";
  parts.push_back({.checkpoint = std::move(checkpoint), .folder = tag});
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), std::move(description), std::move(beside.findings));
}

}  // namespace fsdp::formats::deepspeed
