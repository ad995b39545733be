// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/load_plan.h"

#include <algorithm>
#include <unordered_set>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/shard_spec.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

using formats::Value;

// Limits the keys listed with their nearest name, because each search visits all keys.
constexpr std::size_t kMaxHints = 20;

bool taken_apart(const StateValue& value) {
  if (value.as_tensor() != nullptr || value.as_sharded() != nullptr || value.as_dict() != nullptr)
    return true;
  const StateList* const list = value.as_list();
  return list != nullptr && std::any_of(list->begin(), list->end(), taken_apart);
}

std::string list_of(const std::vector<std::string>& keys,
                    const std::vector<std::string>& candidates) {
  std::string text;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    text += (i == 0 ? "'" : ", '") + keys[i] + "'";
    const std::string near = i < kMaxHints ? formats::nearest(keys[i], candidates) : "";
    if (!near.empty()) text += " (nearest: '" + near + "')";
  }
  return text;
}

std::string count_of(std::size_t count, const char* what) {
  return std::to_string(count) + ' ' + what + (count == 1 ? "" : "s");
}

struct WantedLeaf {
  std::string key;
  formats::KeyPath path;
  StateValue* value;
};

void add_leaves(StateValue& value, const std::string& key, const formats::KeyPath& path,
                std::vector<WantedLeaf>& out);

void add_leaves(StateDict& state, const std::string& prefix, const formats::KeyPath& path,
                std::vector<WantedLeaf>& out) {
  for (auto& [key, value] : state.entries()) {
    formats::KeyPath inner = path;
    inner.emplace_back(text_of(key));
    add_leaves(value, prefix + text_of(key), inner, out);
  }
}

void add_leaves(StateValue& value, const std::string& key, const formats::KeyPath& path,
                std::vector<WantedLeaf>& out) {
  if (StateDict* const dict = value.as_dict(); dict != nullptr && !dict->empty())
    return add_leaves(*dict, key + ".", path, out);
  StateList* const list = value.as_list();
  if (list == nullptr || !taken_apart(value)) {
    out.push_back({key, path, &value});
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    formats::KeyPath inner = path;
    inner.emplace_back(static_cast<std::int64_t>(i));
    add_leaves((*list)[i], key + "." + std::to_string(i), inner, out);
  }
}

}  // namespace

void LoadPlan::match(StateDict& state, const Value& content, const std::string& prefix) {
  std::vector<WantedLeaf> wanted;
  add_leaves(state, "", {}, wanted);
  const std::vector<formats::Leaf> found = formats::leaves_of(content);
  std::unordered_map<std::string, const Value*> by_key;
  for (const formats::Leaf& leaf : found) {
    if (leaf.path.empty()) continue;  // an empty dict's placeholder, or not a dict
    by_key.try_emplace(leaf.key, &leaf.value);
  }
  std::unordered_set<std::string> used;
  std::vector<std::string> parents;  // paths of lists that are single values here
  for (const WantedLeaf& leaf : wanted) {
    const auto here = by_key.find(leaf.key);
    const bool tensor = leaf.value->as_tensor() != nullptr || leaf.value->as_sharded() != nullptr;
    const Value* const value =
        here != by_key.end() ? here->second : formats::at_path(content, leaf.path);
    if (value == nullptr || (tensor && here == by_key.end())) {
      // Python's flattening leaves out empty dicts, so nothing is lost.
      if (leaf.value->as_dict() == nullptr) missing(prefix + leaf.key);
      continue;
    }
    if (here != by_key.end()) {
      used.insert(leaf.key);
    } else {
      parents.push_back(leaf.key + ".");
    }
    if (!tensor) {
      values_.emplace_back(leaf.value, reader_.value(*value, prefix + leaf.key, problems_));
    } else if (const auto number = formats::tensor_number(*value)) {
      fill(prefix + leaf.key, *number, *leaf.value);
    } else {
      problem("'" + prefix + leaf.key + "': not a plain tensor in the checkpoint");
    }
  }
  for (const formats::Leaf& leaf : found) {
    const bool part = std::any_of(parents.begin(), parents.end(), [&](const std::string& parent) {
      return leaf.key.starts_with(parent);
    });
    if (!leaf.path.empty() && !part && !used.contains(leaf.key)) unexpected(prefix + leaf.key);
  }
}

void LoadPlan::fill(const std::string& key, std::size_t number, const StateValue& target) {
  const formats::TensorEntry& entry = reader_.tensor(number);
  const ShardedTensor* const sharded = target.as_sharded();
  const at::Tensor& local = sharded != nullptr ? sharded->local : *target.as_tensor();
  const at::IntArrayRef shape =
      sharded != nullptr ? at::IntArrayRef(sharded->layout.whole_shape()) : local.sizes();
  if (shape != at::IntArrayRef(entry.shape)) {
    return problem(c10::str("'", key, "': shape ", at::IntArrayRef(entry.shape),
                            " in the checkpoint, ", shape, " here"));
  }
  const formats::DType to = dtype_of(local.scalar_type());
  if (to != entry.dtype) {
    const std::string change =
        c10::str(formats::torch_name(entry.dtype), " -> ", formats::torch_name(to));
    if (!options_.cast || !formats::can_cast(entry.dtype, to)) {
      return problem("'" + key + "': dtype " + std::string(formats::torch_name(entry.dtype)) +
                     " in the checkpoint, " + std::string(formats::torch_name(to)) + " here" +
                     (formats::can_cast(entry.dtype, to) ? "; LoadOptions::cast converts it" : ""));
    }
    report_.cast.push_back(key + ": " + change);
  }
  if (sharded == nullptr) return reader_.want(number, local);
  const ShardLayout& layout = sharded->layout;
  const std::int64_t count = layout.rows_of(sharded->part);
  if (local.sizes() != at::IntArrayRef(layout.shape_of(sharded->part))) {
    return problem(c10::str("'", key, "': part ", sharded->part, " of ", layout.world_size,
                            " has shape ", at::IntArrayRef(layout.shape_of(sharded->part)),
                            ", but found ", local.sizes()));
  }
  if (local.numel() == 0) return;
  const auto row_dims = static_cast<std::size_t>(layout.row_dims);
  std::int64_t row = 0;  // of the part
  for (formats::Box& box :
       formats::boxes_of_rows(layout.shape, row_dims, layout.first_row(sharded->part), count)) {
    const std::int64_t rows = formats::count_rows(box.size, row_dims);
    for (std::size_t dim = 0; dim < layout.offset.size(); ++dim)
      box.offset[dim] += layout.offset[dim];
    // A tensor without dimensions has no rows to narrow.
    reader_.want(number, rows == count ? local : local.narrow(0, row, rows),
                 CheckpointReader::Part{std::move(box), sharded->replica_count == 1});
    row += rows;
  }
}

void LoadPlan::check() const {
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (options_.strict && !report_.missing.empty()) {
    add("the checkpoint lacks " + count_of(report_.missing.size(), "key") +
        " of the state: " + list_of(report_.missing, report_.unexpected));
  }
  if (options_.strict && !report_.unexpected.empty()) {
    add("the checkpoint has " + count_of(report_.unexpected.size(), "key") +
        " that the state lacks: " + list_of(report_.unexpected, report_.missing));
  }
  for (const std::string& problem : problems_) add(problem);
  FSDP_CHECK(text.empty(), reader_.checkpoint().description().path, ": ", text);
}

LoadReport LoadPlan::finish() {
  for (auto& [place, value] : values_) *place = std::move(value);
  values_.clear();
  return std::move(report_);
}

}  // namespace fsdp::internal
