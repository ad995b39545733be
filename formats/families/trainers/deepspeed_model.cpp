// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/deepspeed_model.h"

#include <algorithm>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/trainers/zero_partitions.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::deepspeed {
namespace {

// Keys of a model file that are not state of the trainer: weights, and descriptions of the
// partitions.
constexpr std::string_view kLayoutKeys[] = {"module",
                                            "buffer_names",
                                            "optimizer",
                                            "param_shapes",
                                            "frozen_param_shapes",
                                            "frozen_param_fragments",
                                            "shared_params",
                                            "param_alignment_paddings"};

}  // namespace

void ModelFiles::fail(ErrorCode code, std::uint32_t file, const std::string& why) const {
  throw Error(code, cat(path_of(file), ": ", why));
}

void ModelFiles::add_model_file(const StateFile& file) {
  const std::uint32_t number = add_file(file.name, file.rank);
  if (member(root(number), "module") == nullptr ||
      !mapping_entries(*member(root(number), "module")))
    fail(ErrorCode::kMetaType, number, "has no dict 'module', as DeepSpeed's model states do");
  models_.emplace(file.rank.value_or(0), number);
}

std::set<std::string> ModelFiles::buffer_names() const {
  std::set<std::string> names;
  const Value* list = member(model_root(), "buffer_names");
  if (list == nullptr) return names;
  for (const Value& item : list->items()) {
    if (item.as_string() != nullptr) names.insert(*item.as_string());
  }
  return names;
}

std::set<std::string> ModelFiles::add_module(
    const std::function<bool(const std::string& name, const std::string& source)>& trained) {
  const std::set<std::string> buffers = buffer_names();
  const Value* aliases = member(model_root(), "shared_params");
  std::set<std::string> done;
  const auto module = mapping_entries(*member(model_root(), "module"));
  for (const auto& [key, value] : *module) {
    const std::string* name = key.as_string();
    if (name == nullptr || !done.insert(*name).second) continue;
    const Value* alias = aliases == nullptr ? nullptr : member(*aliases, *name);
    const bool tied = alias != nullptr && alias->as_string() != nullptr;
    const std::string& source = tied ? *alias->as_string() : *name;
    if (trained(*name, source) || add_frozen(*name, source)) continue;
    const auto tensor = dense_tensor(value);
    if (!tensor) {
      add_value({"model", *name}, value, model_file());
    } else if (buffers.contains(*name) || tensor->shape != std::vector<std::int64_t>{0}) {
      add_tensor({"model", *name}, tensor->dtype, tensor->shape,
                 {part_of(whole_box(tensor->shape), model_file(), *tensor)});
    } else {
      findings_.push_back(warning(ErrorCode::kOrphan,
                                  "has no elements in the checkpoint: DeepSpeed saves a tied "
                                  "parameter of stage 3 only under its other name",
                                  index_.files[model_file()].name, "model." + *name));
    }
  }
  return done;
}

bool ModelFiles::add_frozen(const std::string& name, const std::string& source) {
  const Value* frozen = member(model_root(), "frozen_param_shapes");
  const Value* said = frozen == nullptr ? nullptr : member(*frozen, source);
  if (said == nullptr) return false;
  const auto shape = shape_of(*said);
  if (!shape) fail(ErrorCode::kMetaType, model_file(), "'frozen_param_shapes' holds no shapes");
  const auto numel = static_cast<std::int64_t>(checked_numel(*shape, "frozen parameter"));
  const std::int64_t piece = piece_numel(numel, ranks_);
  std::vector<Part> parts;
  std::optional<DType> dtype;
  for (const auto& [rank, file] : models_) {
    const Value* fragments = member(root(file), "frozen_param_fragments");
    const Value* fragment = fragments == nullptr ? nullptr : member(*fragments, source);
    const auto tensor = fragment == nullptr ? std::nullopt : dense_tensor(*fragment);
    if (!tensor) continue;
    dtype = dtype.value_or(tensor->dtype);
    if (tensor->dtype != *dtype)
      fail(ErrorCode::kDtype, file, cat(quote(name, 200), ": ranks hold different types"));
    if (!cut_) {
      if (tensor->shape != *shape) {
        fail(ErrorCode::kShape, file,
             cat(quote(name, 200), ": has shape ", shape_text(tensor->shape), ", expected ",
                 shape_text(*shape)));
      }
      parts.push_back(part_of(whole_box(*shape), file, *tensor));
      break;
    }
    const std::int64_t begin = piece_begin(numel, piece, rank);
    const std::int64_t end = begin + std::min(piece, numel - begin);
    if (tensor->shape.size() != 1 || tensor->shape[0] < end - begin)
      fail(ErrorCode::kShape, file, cat(quote(name, 200), ": its part is too short"));
    add_flat_parts(parts, *shape, begin, end, file, *tensor, 0);
  }
  add_tensor({"model", name}, dtype.value_or(DType::kFloat32), *shape, std::move(parts));
  return true;
}

void ModelFiles::add_param_groups(const Value* groups, std::uint32_t file,
                                  const std::vector<std::vector<std::string>>& names) {
  if (groups == nullptr || groups->items().size() != names.size()) return;
  for (std::size_t g = 0; g < names.size(); ++g) {
    const auto entries = mapping_entries(groups->items()[g]);
    if (!entries) continue;
    const auto add = [&](const std::string& option, const Value& value) {
      add_value({"optimizer", "param_groups", static_cast<std::int64_t>(g), option}, value, file);
    };
    for (const auto& [key, value] : *entries) {
      if (key.as_string() != nullptr && *key.as_string() != "params") add(*key.as_string(), value);
    }
    std::vector<Value> members;
    for (const std::string& name : names[g]) members.push_back(Value::string(name));
    add("params", Value::list(std::move(members)));
  }
}

void ModelFiles::add_trainer_state() {
  const auto saved = mapping_entries(model_root());
  for (const auto& [key, value] : *saved) {
    const std::string* name = key.as_string();
    if (name == nullptr || value.is_none() || *name == "model") continue;
    if (std::ranges::find(kLayoutKeys, *name) != std::end(kLayoutKeys)) continue;
    add_value({*name}, value, model_file());
  }
}

std::optional<std::string> ModelFiles::version() const {
  const Value* said = member(model_root(), "ds_version");
  if (said == nullptr || said->as_string() == nullptr) return std::nullopt;
  return *said->as_string();
}

}  // namespace fsdp::formats::deepspeed
