// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/deepspeed_model.h"

#include <algorithm>
#include <charconv>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
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

namespace {

constexpr std::uint64_t kMaxTagBytes = 255;  // a tag is the name of a folder

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<StateFile> state_file(std::string_view name) {
  StateFile file;
  file.name = name;
  file.optimizer = name.ends_with("_optim_states.pt");
  // Files of a pipeline's layers have a hyphen there.
  if (!file.optimizer && !name.ends_with("_model_states.pt") && !name.ends_with("-model_states.pt"))
    return std::nullopt;
  std::string_view rest = name.substr(0, name.size() - std::string_view("_optim_states.pt").size());
  if (!take(rest, "bf16_")) take(rest, "fp16_");
  if (take(rest, "zero_pp_rank_")) {
    file.rank = take_number(rest);
    if (!file.rank || !take(rest, "_")) file.other = true;
  }
  const auto model_rank = take(rest, "mp_rank_") ? take_number(rest) : std::nullopt;
  file.model_rank = model_rank.value_or(0);
  file.other = file.other || !model_rank || !rest.empty();
  return file;
}

std::vector<StateFile> state_files(const Folder& folder) {
  std::vector<StateFile> files;
  for (const std::string& name : folder.list()) {
    if (auto file = state_file(name)) files.push_back(std::move(*file));
  }
  std::ranges::stable_sort(files, [](const StateFile& a, const StateFile& b) {
    return a.rank.value_or(0) < b.rank.value_or(0);
  });
  return files;
}

std::vector<std::string> beside_tags(const Folder& folder) {
  std::vector<std::string> names;
  for (const std::string& name : folder.list()) {
    const bool known = name == "latest" || name == "latest_universal" ||
                       (name.starts_with("zero_to_") && name.ends_with(".py"));
    const bool tag =
        folder.is_folder(name) && !state_files(*folder_at(folder.path() / name)).empty();
    if (!known && !tag) names.push_back(name);
  }
  return names;
}

std::optional<std::string> named_folder(const Folder& folder, const std::string& file) {
  if (folder.is_folder(file)) return std::nullopt;
  const auto latest = folder.open_member_if_present(file);
  if (latest == nullptr || latest->size() > kMaxTagBytes) return std::nullopt;
  const std::vector<std::byte> bytes = read_bytes(*latest, 0, latest->size());
  std::string tag(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  // The tag must be a name within the folder.
  if (tag.empty() || tag == "." || tag == ".." || tag.find('/') != std::string::npos ||
      tag.find('\0') != std::string::npos || !folder.is_folder(tag)) {
    return std::nullopt;
  }
  return tag;
}

std::optional<std::filesystem::path> tag_folder(const Listing& folder) {
  const auto is_model = [](const std::string& name) {
    const auto file = state_file(name);
    return file && (!file->other || name.starts_with("layer_"));
  };
  if (folder.any(is_model)) return folder.path();
  const auto tag = named_folder(*folder.folder, "latest");
  if (!tag || !Listing(folder.path() / *tag).any(is_model)) return std::nullopt;
  return folder.path() / *tag;
}

namespace {

// Returns a + b, but at most 2^63 - 1.
std::int64_t capped_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace

std::int64_t piece_numel(std::int64_t numel, std::int64_t ranks) {
  return numel / ranks + (numel % ranks == 0 ? 0 : 1);
}

std::int64_t piece_begin(std::int64_t numel, std::int64_t piece, std::int64_t rank) {
  return piece == 0 || rank > numel / piece ? numel : rank * piece;
}

std::vector<FlatRun> runs_by_group(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                   std::int64_t partition) {
  const std::size_t g = parameter.group;
  for (const auto& [rank, groups] : ranks) {
    if (g < groups.tensors.size()) partition = std::max(partition, groups.tensors[g].shape[0]);
  }
  std::vector<FlatRun> runs;
  if (partition == 0) return runs;
  const std::int64_t parameter_end = capped_sum(parameter.begin, parameter.numel);
  for (const auto& [rank, groups] : ranks) {
    if (g >= groups.tensors.size() || rank > INT64_MAX / partition) continue;
    const TensorValue& tensor = groups.tensors[g];
    const std::int64_t from = rank * partition;
    const std::int64_t begin = std::max(parameter.begin, from);
    const std::int64_t end = std::min(parameter_end, capped_sum(from, tensor.shape[0]));
    if (begin >= end) continue;
    runs.push_back(
        {begin - parameter.begin, end - parameter.begin, groups.file, &tensor, begin - from});
  }
  return runs;
}

std::vector<FlatRun> runs_by_parameter(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                       std::int64_t rank_count) {
  const std::int64_t piece = piece_numel(parameter.numel, rank_count);
  std::vector<FlatRun> runs;
  for (const auto& [rank, groups] : ranks) {
    const std::int64_t first = piece_begin(parameter.numel, piece, rank);
    const std::int64_t count = std::min(piece, parameter.numel - first);
    const std::int64_t piece_end = capped_sum(parameter.begin, count);
    std::int64_t group_begin = 0;
    for (const TensorValue& tensor : groups.tensors) {
      if (group_begin >= piece_end) break;
      const std::int64_t group_end = capped_sum(group_begin, tensor.shape[0]);
      const std::int64_t begin = std::max(parameter.begin, group_begin);
      const std::int64_t end = std::min(piece_end, group_end);
      if (begin < end) {
        runs.push_back({first + (begin - parameter.begin), first + (end - parameter.begin),
                        groups.file, &tensor, begin - group_begin});
      }
      group_begin = group_end;
    }
  }
  return runs;
}

}  // namespace fsdp::formats::deepspeed
