// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/source_plan.h"

#include <algorithm>
#include <utility>

#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::dcp {
namespace {

bool holds_tensor(const Value& value) {
  const std::vector<Leaf> leaves = leaves_of(value);
  return std::ranges::any_of(
      leaves, [](const Leaf& leaf) { return tensor_number(leaf.value).has_value(); });
}

}  // namespace

SourcePlan::SourcePlan(const Checkpoint& source, const Value& content, std::string_view layout,
                       std::int64_t world_size, const ShardingChoice& choice,
                       const ValueCheck& on_value)
    : FolderPlan(world_size), source_(source) {
  check_world_size(world_size);
  const bool lightning = layout == "lightning";
  std::vector<Leaf> objects;
  const Value sharded =
      is_megatron_layout(layout) ? without_common(content, on_value, objects) : content;
  for (Leaf& entry : entries_of(sharded)) {
    const auto number = lightning ? deferred_number(entry.value) : std::nullopt;
    const Index& index = source.index();
    if (number && index.files[index.values[*number].location.file].name == kLightningMetaName) {
      add_to_state_file(entry.key, entry.value, on_value);
    } else {
      entries_.push_back(std::move(entry));
    }
  }
  for (Leaf& object : objects) entries_.push_back(std::move(object));
  value_count_ = state_file_.size();
  if (layout == kMegatronItemLayout) {
    const std::string key(kMegatronCommonKey);
    entries_.push_back({key, {key}, common_state_item(Value::dict(std::move(state_file_)))});
    state_file_.clear();
    --value_count_;  // the item is counted with the others
  }
  const ShardingRule rule(source, sharded, entries_, choice);
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    if (tensor_number(entries_[e].value)) {
      add_tensor(e, rule);
    } else {
      const Value value = resolved(source, entries_[e].value);
      if (on_value) on_value(entries_[e].key, value);
      add_value(e, value, true);
    }
  }
  value_count_ += values_.size();
  choose_ranks();
  place_items();
}

void SourcePlan::add_to_state_file(const std::string& key, const Value& value,
                                   const ValueCheck& on_value) {
  state_file_.emplace_back(Value::string(key), with_values(source_, value));
  if (on_value) on_value(key, state_file_.back().second);
}

Value SourcePlan::without_common(const Value& content, const ValueCheck& on_value,
                                 std::vector<Leaf>& objects) {
  const auto members = mapping_entries(content);
  if (!members) return content;
  std::vector<Value::Entry> sharded;
  for (const auto& [key, value] : *members) {
    const std::string* name = key.as_string();
    if (name == nullptr || holds_tensor(value)) {
      sharded.emplace_back(key, value);
    } else if (name->find("/shard_") != std::string::npos) {
      // Each rank has its own object of this name; it is one item, whatever it holds.
      objects.push_back({*name, {*name}, value});
    } else {
      add_to_state_file(*name, value, on_value);
    }
  }
  return Value::dict(std::move(sharded));
}

void SourcePlan::add_tensor(std::size_t entry, const ShardingRule& rule) {
  const Leaf& leaf = entries_[entry];
  const std::size_t number = *tensor_number(leaf.value);
  TensorItem item{};
  item.entry = entry;
  item.tensor = number;
  item.dtype = dense_tensor(leaf.value)->dtype;
  item.shape = source_.index().tensors[number].shape;
  item.cut = rule.cuts(leaf);
  if (item.cut) item.rows = cut_rows(item.shape[0], world_size_);
  item.measure();
  tensors_.push_back(std::move(item));
}

void SourcePlan::choose_ranks() {
  const auto& source_tensors = source_.index().tensors;
  Balance balance(world_size_);
  std::size_t value = 0;
  std::size_t tensor = 0;
  for (std::size_t e = 0; e < entries_.size(); ++e) {
    if (value < values_.size() && values_[value].entry == e) {
      values_[value++].rank = balance.place(0);
      continue;
    }
    TensorItem& item = tensors_[tensor++];
    const std::uint64_t bytes = source_tensors[item.tensor].numel() * item_bytes(item.dtype);
    if (item.cut) {
      balance.add_cut(bytes);
    } else {
      item.rank = balance.place(bytes);
    }
  }
}

}  // namespace fsdp::formats::dcp
