// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/placed_leaves.h"

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {
namespace {

// Walks the value in step with the list of its leaves, which says where to stop.
class Placer {
 public:
  std::vector<PlacedLeaf> run(const Value& root) {
    leaves_ = leaves_of(root);
    out_.reserve(leaves_.size());
    walk(root);
    return std::move(out_);
  }

 private:
  void walk(const Value& value) {
    Leaf& leaf = leaves_.at(out_.size());
    if (leaf.path.size() == at_.size()) {
      out_.push_back({std::move(leaf.key), at_, std::move(leaf.value)});
      return;
    }
    const auto descend = [&](const Value& child, const Value& key) {
      // The path of the next leaf leads through this child: leaves come in the order of the walk.
      at_.push_back({leaves_.at(out_.size()).path.at(at_.size()), key, value});
      walk(child);
      at_.pop_back();
    };
    if (const auto entries = mapping_entries(value)) {
      for (const auto& [key, child] : *entries) descend(child, key);
    } else {
      for (const Value& child : value.items()) descend(child, Value());
    }
  }

  std::vector<Leaf> leaves_;
  std::vector<PlacedStep> at_;
  std::vector<PlacedLeaf> out_;
};

struct Node {
  const PlacedLeaf* leaf = nullptr;   // if it is a leaf
  const PlacedLeaf* first = nullptr;  // of the leaves inside, for messages
  Value container;
  bool mapping = true;
  std::vector<std::pair<Value, std::unique_ptr<Node>>> members;
  std::unordered_map<std::string, std::size_t> by_name;
};

// Returns a name for a step; a key and a position of the same text have different names.
std::string name_of(const PathStep& step) {
  if (const auto* text = std::get_if<std::string>(&step)) return "k" + *text;
  return "p" + std::to_string(std::get<std::int64_t>(step));
}

// Returns a mapping's key in the form that paths have it.
Value key_of(const Value::Entry& entry) {
  if (entry.first.as_int()) return Value::string(std::to_string(*entry.first.as_int()));
  return entry.first;
}

[[noreturn]] void throw_collision(const PlacedLeaf& a, const PlacedLeaf& b) {
  const std::string name = joined(key_path(b));
  const std::string what =
      joined(key_path(a)) == name ? "both be named " : "lie inside each other: ";
  throw Error(ErrorCode::kRekeyCollision, cat(quote(a.was, 200), " and ", quote(b.was, 200),
                                              " would ", what, quote(name, 200)));
}

void insert(Node& root, const PlacedLeaf& leaf) {
  Node* node = &root;
  for (const PlacedStep& step : leaf.path) {
    if (node->leaf != nullptr) throw_collision(*node->leaf, leaf);
    const bool mapping = std::holds_alternative<std::string>(step.step);
    if (node->members.empty()) {
      node->mapping = mapping;
      node->container = step.container;
    } else if (node->mapping != mapping) {
      throw_collision(*node->first, leaf);
    }
    if (node->first == nullptr) node->first = &leaf;
    const auto [at, fresh] = node->by_name.try_emplace(name_of(step.step), node->members.size());
    if (fresh) node->members.emplace_back(step.key, std::make_unique<Node>());
    node = node->members[at->second].second.get();
  }
  if (node->leaf != nullptr) throw_collision(*node->leaf, leaf);
  if (!node->members.empty()) throw_collision(*node->first, leaf);
  node->leaf = &leaf;
}

Value finished(const Node& node) {
  if (node.leaf != nullptr) return node.leaf->value;
  if (!node.mapping) {
    std::vector<Value> items;
    items.reserve(node.members.size());
    for (const auto& [key, child] : node.members) items.push_back(finished(*child));
    return node.container.kind() == ValueKind::kTuple ? Value::tuple(std::move(items))
                                                      : Value::list(std::move(items));
  }
  std::vector<Value::Entry> entries;
  entries.reserve(node.members.size());
  for (const auto& [key, child] : node.members) entries.emplace_back(key, finished(*child));
  return mapping_like(node.container, std::move(entries));
}

}  // namespace

std::vector<PlacedLeaf> placed_leaves(const Value& root) {
  return Placer().run(root);
}

PlacedStep text_step(std::string text, const PlacedStep& like) {
  Value key = Value::string(text);
  return {std::move(text), std::move(key), like.container};
}

std::span<const Value::Entry> members_of(const Value& value) {
  const auto entries = mapping_entries(value);
  return entries ? *entries : std::span<const Value::Entry>();
}

Value with_value_at(const Value& root, std::span<const PathStep> path, const Value& value) {
  if (path.empty()) return value;
  if (const auto* position = std::get_if<std::int64_t>(&path[0])) {
    std::vector<Value> items(root.items().begin(), root.items().end());
    Value& item = items.at(static_cast<std::size_t>(*position));
    item = with_value_at(item, path.subspan(1), value);
    return root.kind() == ValueKind::kTuple ? Value::tuple(std::move(items))
                                            : Value::list(std::move(items));
  }
  const auto old = members_of(root);
  std::vector<Value::Entry> entries(old.begin(), old.end());
  for (Value::Entry& entry : entries) {
    const Value key = key_of(entry);
    if (key.as_string() != nullptr && *key.as_string() == std::get<std::string>(path[0]))
      entry.second = with_value_at(entry.second, path.subspan(1), value);
  }
  return mapping_like(root, std::move(entries));
}

KeyPath key_path(const PlacedLeaf& leaf) {
  KeyPath path;
  path.reserve(leaf.path.size());
  for (const PlacedStep& step : leaf.path) path.push_back(step.step);
  return path;
}

Value rebuilt(const std::vector<PlacedLeaf>& leaves) {
  Node root;
  for (const PlacedLeaf& leaf : leaves) insert(root, leaf);
  return root.leaf == nullptr && root.members.empty() ? Value::dict({}) : finished(root);
}

}  // namespace fsdp::formats
