// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/placed_leaves.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

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
  throw Error(ErrorCode::kRekeyCollision, quote(a.was, 200), " and ", quote(b.was, 200), " would ",
              what, quote(name, 200));
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

std::vector<std::string> components_of(std::string_view text) {
  std::vector<std::string> out;
  while (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty()) return out;
  for (std::size_t at = 0;;) {
    const std::size_t dot = text.find('.', at);
    out.emplace_back(text.substr(at, dot - at));
    if (dot == std::string_view::npos) return out;
    at = dot + 1;
  }
}

std::string joined_text(std::span<const std::string> components) {
  std::string out;
  for (const std::string& component : components) out += (out.empty() ? "" : ".") + component;
  return out;
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

void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to) {
  // A first level that both keys share stays as it is.
  const std::string front = joined({leaf.path[0].step}) + '.';
  if (leaf.path.size() > 1 && bytes >= front.size() && to.starts_with(front)) {
    PlacedLeaf inner{leaf.was, {leaf.path.begin() + 1, leaf.path.end()}, leaf.value};
    move_leaf(inner, bytes - front.size(), to.substr(front.size()));
    leaf.path.erase(leaf.path.begin() + 1, leaf.path.end());
    leaf.path.insert(leaf.path.end(), inner.path.begin(), inner.path.end());
    return;
  }
  // The number of replaced components in each step, and the rest of the last step.
  std::vector<std::size_t> counts;
  std::string rest;
  std::size_t taken = 0;  // steps
  for (std::size_t left = bytes; left != 0 && taken < leaf.path.size(); ++taken) {
    const std::string text = joined({leaf.path[taken].step});
    counts.push_back(components_of(std::string_view(text).substr(0, left)).size());
    if (left >= text.size()) {
      left -= text.size();
      if (left != 0) --left;  // the dot between two steps
      continue;
    }
    rest = text.substr(left);
    if (rest.starts_with('.')) rest.erase(0, 1);
    left = 0;
  }
  std::vector<std::string> components = components_of(to);
  std::vector<std::string> steps;
  for (std::size_t i = counts.size(); i-- > 0;) {
    const std::size_t count = std::min(counts[i], components.size());
    std::string text = joined_text(std::span(components).last(count));
    components.resize(components.size() - count);
    if (i + 1 == counts.size() && !rest.empty()) text += (text.empty() ? "" : ".") + rest;
    if (!text.empty()) steps.insert(steps.begin(), std::move(text));
  }
  steps.insert(steps.begin(), components.begin(), components.end());
  std::vector<PlacedStep> path;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // Steps are matched from the end: the last new step leads to the same place as the last old
    // one.
    const std::size_t from_end = steps.size() - 1 - i;
    PlacedStep like;
    if (from_end < taken) like = leaf.path[taken - 1 - from_end];
    path.push_back(text_step(steps[i], like));
  }
  path.insert(path.end(), leaf.path.begin() + static_cast<std::ptrdiff_t>(taken), leaf.path.end());
  if (path.empty())
    throw Error(ErrorCode::kName, quote(leaf.was, 200) + " would be left without a name");
  leaf.path = std::move(path);
}

}  // namespace fsdp::formats
