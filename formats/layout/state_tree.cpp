// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/state_tree.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/layout/tensor_value.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxLeaves = 10'000'000;
// Longest list a path may ask for; PyTorch's lists hold param groups and layers.
constexpr std::int64_t kMaxListLength = 10'000'000;

bool is_tensor(const Value& value) { return dense_tensor(value).has_value() || !special_tensor(value).empty(); }

bool is_sequence(const Value& value) { return value.kind() == ValueKind::kList || value.kind() == ValueKind::kTuple; }

bool taken_apart(const Value& value) {
  if (const auto entries = mapping_entries(value)) return !entries->empty();
  if (!is_sequence(value)) return false;
  const auto items = value.items();
  return std::any_of(items.begin(), items.end(), [](const Value& item) {
    return is_tensor(item) || mapping_entries(item).has_value() || (is_sequence(item) && taken_apart(item));
  });
}

// How a mapping's key reads in a path: as Python's str() has it.
std::string key_text(const Value& key) {
  if (key.as_string() != nullptr) return *key.as_string();
  if (key.as_int()) return std::to_string(*key.as_int());
  if (key.as_bool()) return *key.as_bool() ? "True" : "False";
  if (key.is_none()) return "None";
  if (key.as_float()) return cat(*key.as_float());
  std::string out = "(";
  for (const Value& item : key.items()) out += (out.size() > 1 ? ", " : "") + key_text(item);
  return out + ")";
}

void walk(const Value& value, Leaf& at, std::vector<Leaf>& out) {
  if (!taken_apart(value)) {
    if (out.size() == kMaxLeaves) {
      throw Error(ErrorCode::kLimitNodes, cat("the object unfolds into more than ", kMaxLeaves, " values"));
    }
    at.value = value;
    out.push_back(at);
    return;
  }
  const std::string key = at.key;
  const auto descend = [&](const Value& child, const std::string& text, PathStep step) {
    at.key = at.path.empty() ? text : key + "." + text;
    at.path.push_back(std::move(step));
    walk(child, at, out);
    at.path.pop_back();
    at.key = key;
  };
  if (const auto entries = mapping_entries(value)) {
    for (const auto& [name, child] : *entries) descend(child, key_text(name), key_text(name));
    return;
  }
  std::int64_t position = 0;
  for (const Value& child : value.items()) {
    descend(child, std::to_string(position), position);
    ++position;
  }
}

using Keep = std::function<bool(const std::string&)>;

// Nothing where no leaf below is kept.
std::optional<Value> prune(const Value& value, const std::string& key, bool top, const Keep& keep) {
  if (!taken_apart(value)) return keep(key) ? std::optional(value) : std::nullopt;
  const auto child_key = [&](const std::string& text) { return top ? text : key + "." + text; };
  if (const auto entries = mapping_entries(value)) {
    std::vector<Value::Entry> kept;
    for (const auto& [name, child] : *entries) {
      if (auto inner = prune(child, child_key(key_text(name)), false, keep)) kept.emplace_back(name, std::move(*inner));
    }
    if (kept.empty()) return std::nullopt;
    if (value.kind() == ValueKind::kDict) return Value::dict(std::move(kept));
    ObjectData object = *value.as_object();
    object.dict_items = std::move(kept);
    return Value::object(std::move(object));
  }
  std::vector<Value> kept;
  std::int64_t position = 0;
  for (const Value& child : value.items()) {
    if (auto inner = prune(child, child_key(std::to_string(position++)), false, keep)) kept.push_back(std::move(*inner));
  }
  if (kept.empty()) return std::nullopt;
  return value.kind() == ValueKind::kTuple ? Value::tuple(std::move(kept)) : Value::list(std::move(kept));
}

// A container under construction.
struct Node {
  enum class Kind { kLeaf, kMapping, kList };
  Kind kind = Kind::kLeaf;
  bool set = false;
  Value leaf;
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> members;
  std::unordered_map<std::string, std::size_t> by_name;
  std::vector<std::unique_ptr<Node>> items;
};

// The child of `node` that a step leads to, made where it is missing; nullptr where `node` is of another kind.
Node* child_of(Node& node, const PathStep& step) {
  const auto* name = std::get_if<std::string>(&step);
  const Node::Kind wanted = name != nullptr ? Node::Kind::kMapping : Node::Kind::kList;
  if (!node.set) {
    node.set = true;
    node.kind = wanted;
  }
  if (node.kind != wanted) return nullptr;
  if (name != nullptr) {
    const auto [at, fresh] = node.by_name.try_emplace(*name, node.members.size());
    if (fresh) node.members.emplace_back(*name, std::make_unique<Node>());
    return node.members[at->second].second.get();
  }
  const std::int64_t position = std::get<std::int64_t>(step);
  if (position >= kMaxListLength) return nullptr;
  const auto index = static_cast<std::size_t>(position);
  while (node.items.size() <= index) node.items.push_back(std::make_unique<Node>());
  return node.items[index].get();
}

Value finished(const Node& node) {
  if (!node.set) return {};  // a list position that no path names: None
  switch (node.kind) {
    case Node::Kind::kLeaf:
      return node.leaf;
    case Node::Kind::kMapping: {
      std::vector<Value::Entry> entries;
      entries.reserve(node.members.size());
      for (const auto& [name, child] : node.members) entries.emplace_back(Value::string(name), finished(*child));
      return Value::dict(std::move(entries));
    }
    case Node::Kind::kList: {
      std::vector<Value> items;
      items.reserve(node.items.size());
      for (const auto& child : node.items) items.push_back(finished(*child));
      return Value::list(std::move(items));
    }
  }
  return {};
}

}  // namespace

std::vector<Leaf> leaves_of(const Value& root) {
  std::vector<Leaf> out;
  Leaf at;
  walk(root, at, out);
  return out;
}

Value pruned(const Value& root, const Keep& keep) {
  auto result = prune(root, {}, true, keep);
  return result ? std::move(*result) : Value::dict({});
}

Value nested_state_dict(const Checkpoint& checkpoint) {
  const Index& index = checkpoint.index();
  Node root;
  root.set = true;
  root.kind = Node::Kind::kMapping;
  for (const Index::EntryRef& ref : index.order) {
    const KeyPath& path = ref.is_tensor ? index.tensors[ref.position].path : index.values[ref.position].path;
    const std::string& key = ref.is_tensor ? index.tensors[ref.position].key : index.values[ref.position].key;
    Node* node = &root;
    for (const PathStep& step : path) {
      node = child_of(*node, step);
      if (node == nullptr) break;
    }
    if (node == nullptr || (node->set && node->kind != Node::Kind::kLeaf)) {
      throw Error(ErrorCode::kKey, cat(quote(key, 200), ": its path contradicts that of another key: one is inside the other"));
    }
    node->set = true;
    if (!ref.is_tensor) {
      node->leaf = checkpoint.value(index.values[ref.position]);
      continue;
    }
    const TensorEntry& tensor = index.tensors[ref.position];
    StorageRef storage;
    storage.key = std::to_string(ref.position);
    storage.archive = kTensorArchive;
    storage.numel = storage_class(tensor.dtype).empty() ? tensor.bytes() : tensor.numel();
    node->leaf = make_dense_tensor(tensor.dtype, tensor.shape, std::move(storage));
  }
  return finished(root);
}

}  // namespace fsdp::formats
