// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/zero_layout.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats::deepspeed {
namespace {

namespace fs = std::filesystem;

// DeepSpeed's zero_optimization.sub_group_size if the configuration does not say it.
constexpr std::int64_t kSubGroupNumel = 1'000'000'000;
// Stages 1 and 2: flat groups are filled up to a multiple of this and the number of ranks.
constexpr std::int64_t kAlignment = 2;

std::int64_t rounded_up(std::int64_t numel, std::int64_t multiple) {
  return (numel + multiple - 1) / multiple * multiple;
}

Value root_of(const fs::path& file) {
  return open_torch_save(file)->tree().value_or(Value());
}

}  // namespace

std::span<const Value::Entry> entries_of(const Value& mapping) {
  const auto entries = mapping_entries(mapping);
  if (!entries)
    throw Error(ErrorCode::kMetaType, "DeepSpeed's files have a dict where this one has none");
  return *entries;
}

ZeroLayout::ZeroLayout(fs::path tag, int stage, std::int64_t ranks, std::vector<std::string> models,
                       std::vector<std::string> optimizers)
    : tag_(std::move(tag)),
      stage_(stage),
      ranks_(ranks),
      models_(std::move(models)),
      optimizers_(std::move(optimizers)),
      sub_group_numel_(kSubGroupNumel) {
  read();
}

std::vector<FlatParameters> ZeroLayout::flat_groups(std::int64_t ranks,
                                                    std::vector<std::size_t>* owners) const {
  std::vector<FlatParameters> out;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::int64_t whole = 0;
    for (const FlatParameter& parameter : groups_[g]) whole += piece_numel(parameter.numel, ranks);
    const bool split = stage_ == 3 && sub_group_numel_ < whole;
    std::int64_t numel = 0;
    bool begun = false;
    for (const FlatParameter& parameter : groups_[g]) {
      if (!begun) out.emplace_back();
      begun = true;
      out.back().push_back(parameter);
      numel += piece_numel(parameter.numel, ranks);
      if (!split || numel < sub_group_numel_) continue;
      begun = false;
      numel = 0;
    }
    if (groups_[g].empty() && stage_ != 3) out.emplace_back();
    if (owners != nullptr) owners->resize(out.size(), g);
  }
  return out;
}

std::int64_t ZeroLayout::partition_numel(const FlatParameters& group, std::size_t g,
                                         std::int64_t ranks) const {
  if (stage_ != 3) return rounded_up(group_numel_[g], kAlignment * ranks) / ranks;
  std::int64_t numel = 0;
  for (const FlatParameter& parameter : group) numel += piece_numel(parameter.numel, ranks);
  return numel;
}

std::int64_t ZeroLayout::lean_numel(const FlatParameters& group, std::size_t g, std::int64_t rank,
                                    std::int64_t ranks) const {
  const std::int64_t numel = partition_numel(group, g, ranks);
  return stage_ == 3 ? numel : std::clamp<std::int64_t>(group_numel_[g] - rank * numel, 0, numel);
}

std::string ZeroLayout::weights_key() const {
  return stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
}

const Value& ZeroLayout::needed(const Value& mapping, const std::string& key,
                                const std::string& name) const {
  const Value* const value = member(mapping, key);
  if (value == nullptr)
    throw Error(ErrorCode::kMetaType, cat(escape((tag_ / name).native()), ": has no ", quote(key)));
  return *value;
}

void ZeroLayout::refuse(const std::string& name, const std::string& why) const {
  throw Error(ErrorCode::kUnsupported, cat(escape((tag_ / name).native()), ": ", why),
              {Remedy::kOtherLayout});
}

void ZeroLayout::read() {
  const Value model = root_of(tag_ / models_.at(0));
  const Value optimizer = root_of(tag_ / optimizers_.at(0));
  const Value& zero = needed(optimizer, kOptimizer, optimizers_[0]);
  const Value& said = needed(model, "dp_world_size", models_[0]);
  if (said.as_int() != ranks_) {
    refuse(models_[0], cat("'dp_world_size' is not ", ranks_,
                           ", the number of partitions: a part of the ranks holds them all"));
  }
  const Value* const config = member(model, "ds_config");
  const Value* const options = config == nullptr ? nullptr : member(*config, "zero_optimization");
  const auto option = [&](std::string_view key) {
    return options == nullptr ? nullptr : member(*options, key);
  };
  if (const Value* const round = option("round_robin_gradients");
      stage_ != 3 && round != nullptr && round->as_bool() == true) {
    refuse(models_[0],
           "'round_robin_gradients' is set: the order of the parameters depends on "
           "the number of ranks");
  }
  if (const Value* const groups = member(zero, "ds_zero_partition_groups");
      groups != nullptr && !groups->is_none())
    refuse(optimizers_[0], "parameters are cut over different groups of ranks, like experts");
  if (const Value* const size = option("sub_group_size"); size != nullptr) {
    if (size->as_int()) sub_group_numel_ = *size->as_int();
    if (size->as_float() && *size->as_float() > 0 && *size->as_float() < 9e18)
      sub_group_numel_ = static_cast<std::int64_t>(*size->as_float());
  }
  const Value* const paddings = member(zero, "param_alignment_paddings");
  const auto groups = needed(model, "param_shapes", models_[0]).items();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    FlatParameters parameters;
    const auto padding = paddings != nullptr && stage_ != 3 && g < paddings->items().size()
                             ? integers(paddings->items()[g])
                             : std::nullopt;
    std::int64_t begin = 0;
    for (const auto& [key, value] : entries_of(groups[g])) {
      const auto shape = shape_of(value);
      if (key.as_string() == nullptr || !shape)
        throw Error(ErrorCode::kMetaType, "'param_shapes' holds no names and shapes");
      const auto numel = static_cast<std::int64_t>(numel_of(*shape));
      parameters.push_back({*key.as_string(), numel, begin});
      begin += numel;
      if (padding && parameters.size() <= padding->size())
        begin += (*padding)[parameters.size() - 1];
    }
    group_numel_.push_back(begin);
    groups_.push_back(std::move(parameters));
  }
  if (stage_ == 3) join_sub_groups(needed(zero, kOptimizer, optimizers_[0]));
  check_sizes(zero);
}

void ZeroLayout::join_sub_groups(const Value& optimizer) {
  std::vector<FlatParameters> joined_groups;
  std::size_t next = 0;
  for (const Value& group : needed(optimizer, "param_groups", optimizers_[0]).items()) {
    FlatParameters all;
    const Value* const params = member(group, "params");
    const auto numbers = params == nullptr ? std::nullopt : integers(*params);
    if (!numbers) refuse(optimizers_[0], "'param_groups' does not number flat tensors");
    for (const std::int64_t number : *numbers) {
      if (number != static_cast<std::int64_t>(next) || next >= groups_.size())
        refuse(optimizers_[0], "'param_groups' does not number the sub-groups in their order");
      all.insert(all.end(), groups_[next].begin(), groups_[next].end());
      ++next;
    }
    joined_groups.push_back(std::move(all));
  }
  if (next != groups_.size())
    refuse(optimizers_[0],
           cat("'param_groups' has ", next, " sub-groups, 'param_shapes' ", groups_.size()));
  groups_ = std::move(joined_groups);
}

void ZeroLayout::check_sizes(const Value& zero) const {
  const auto flats = needed(zero, weights_key(), optimizers_[0]).items();
  const std::vector<FlatParameters> groups = flat_groups(ranks_);
  bool alike = flats.size() == groups.size();
  for (std::size_t g = 0; alike && g < groups.size(); ++g) {
    const auto tensor = dense_tensor(flats[g]);
    alike =
        tensor && tensor->shape == std::vector<std::int64_t>{lean_numel(groups[g], g, 0, ranks_)};
  }
  if (!alike) {
    refuse(optimizers_[0], cat(quote(weights_key()),
                               " does not hold flat tensors of the lengths "
                               "that DeepSpeed's rules give for ",
                               ranks_, " ranks"));
  }
  if (stage_ != 3 &&
      needed(zero, "base_optimizer_state", optimizers_[0]).kind() == ValueKind::kList)
    refuse(optimizers_[0], "is an elastic checkpoint, which DeepSpeed does not load anymore");
}

}  // namespace fsdp::formats::deepspeed
