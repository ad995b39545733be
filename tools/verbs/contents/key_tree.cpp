// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/key_tree.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "formats/bytes/base/text.h"
#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {
namespace {

// A node while keys are still being added: finds children by name.
struct Branch {
  std::unordered_map<std::string, std::unique_ptr<Branch>> children;
  const formats::TensorEntry* tensor = nullptr;
  const formats::ValueEntry* value = nullptr;
};

// The most levels of the tree: more than modules nest, and few enough for recursive functions.  A
// name of 65,536 bytes may have 32,768 parts.
constexpr std::size_t kMaxLevels = 256;

// Splits a path; parts deeper than kMaxLevels stay one name, with its dots.
std::vector<std::string> parts_of(const formats::KeyPath& path) {
  if (path.empty()) return {std::string(kRootName)};  // the object itself
  std::vector<std::string> parts;
  const auto add = [&](std::string_view part) {
    if (parts.size() < kMaxLevels)
      parts.emplace_back(part);
    else
      parts.back().append(".").append(part);
  };
  for (const formats::PathStep& step : path) {
    const auto* name = std::get_if<std::string>(&step);
    if (name == nullptr) {
      add(std::to_string(std::get<std::int64_t>(step)));
      continue;
    }
    std::string_view rest = *name;
    for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      add(rest.substr(0, dot));
      rest.remove_prefix(dot + 1);
    }
    add(rest);
  }
  return parts;
}

Branch& branch_at(Branch& root, const formats::KeyPath& path) {
  Branch* at = &root;
  for (std::string& part : parts_of(path)) {
    auto& child = at->children[std::move(part)];
    if (!child) child = std::make_unique<Branch>();
    at = child.get();
  }
  return *at;
}

bool is_number(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

// Returns a text that is the same for equal subtrees.
std::string signature(const KeyNode& node) {
  std::string text;
  if (node.tensor != nullptr) {
    text += std::string(formats::torch_name(node.tensor->dtype)) +
            formats::shape_text(node.tensor->shape);
  }
  if (node.value != nullptr) text += "value";
  text += '(';
  for (const auto& child : node.children) text += child->name + '=' + signature(*child) + ',';
  return text + ')';
}

// Equal numbered siblings: the first node, and the names of all.
struct Alike {
  KeyNode* first;
  std::vector<std::string> names;
};

// Returns whether `b` is the number after `a`, in the same notation.
bool follows(const std::string& a, const std::string& b) {
  constexpr std::size_t kMaxDigits = 18;
  return a.size() <= kMaxDigits && b == std::to_string(std::stoull(a) + 1);
}

// Returns "{0..11}", "{0..2,5}", "{0,2,4,6,...}".  Requires: natural order.
std::string range_text(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxRanges = 4;
  std::string text = "{";
  std::size_t ranges = 0;
  for (std::size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    if (ranges++ == kMaxRanges) return text + ",...}";
    for (end = begin + 1; end < names.size() && follows(names[end - 1], names[end]);) ++end;
    text += (begin == 0 ? "" : ",") + names[begin];
    if (end - begin > 1) text += (end - begin == 2 ? "," : "..") + names[end - 1];
  }
  return text + "}";
}

// Adds the tensors of a subtree to those of an equal one.
void add_alike(KeyNode& first, const KeyNode& other) {
  first.alike.insert(first.alike.end(), other.alike.begin(), other.alike.end());
  for (std::size_t c = 0; c < first.children.size(); ++c)
    add_alike(*first.children[c], *other.children[c]);
}

void fold_children(KeyNode& node) {
  std::map<std::string, Alike> alike;
  std::vector<std::unique_ptr<KeyNode>> kept;
  for (auto& child : node.children) {
    if (!is_number(child->name)) {
      kept.push_back(std::move(child));
      continue;
    }
    const auto [at, fresh] = alike.try_emplace(signature(*child), Alike{child.get(), {}});
    at->second.names.push_back(child->name);
    if (fresh) {
      kept.push_back(std::move(child));
      continue;
    }
    KeyNode& first = *at->second.first;
    ++first.copies;
    first.tensors += child->tensors;
    first.values += child->values;
    first.numel += child->numel;
    first.bytes += child->bytes;
    add_alike(first, *child);
  }
  for (auto& [text, same] : alike) {
    if (same.names.size() > 1) same.first->name = range_text(same.names);
  }
  node.children = std::move(kept);
}

std::unique_ptr<KeyNode> finished(std::string name, Branch& branch, bool fold) {
  auto node = std::make_unique<KeyNode>();
  node->name = std::move(name);
  node->tensor = branch.tensor;
  node->value = branch.value;
  if (node->tensor != nullptr) {
    node->tensors = 1;
    node->numel = node->tensor->numel();
    node->bytes = node->tensor->bytes();
    if (fold) node->alike = {node->tensor};
  }
  if (node->value != nullptr) node->values = 1;
  for (auto& [child_name, child] : branch.children)
    node->children.push_back(finished(child_name, *child, fold));
  std::sort(node->children.begin(), node->children.end(),
            [](const auto& a, const auto& b) { return formats::natural_less(a->name, b->name); });
  for (const auto& child : node->children) {
    node->tensors += child->tensors;
    node->values += child->values;
    node->numel += child->numel;
    node->bytes += child->bytes;
  }
  if (fold) fold_children(*node);
  return node;
}

// Joins a -> b -> c without a branch into one line a.b.c.
void join_chains(KeyNode& node, bool top) {
  for (auto& child : node.children) join_chains(*child, false);
  if (top || node.children.size() != 1 || node.tensor != nullptr || node.value != nullptr) return;
  if (node.copies != 1) return;  // its totals cover all copies
  const std::unique_ptr<KeyNode> child = std::move(node.children[0]);
  child->name = node.name + "." + child->name;
  node = std::move(*child);
}

}  // namespace

std::unique_ptr<KeyNode> key_tree(const formats::Index& index, bool fold) {
  Branch root;
  for (const formats::TensorEntry& tensor : index.tensors)
    branch_at(root, tensor.path).tensor = &tensor;
  for (const formats::ValueEntry& value : index.values) branch_at(root, value.path).value = &value;
  auto tree = finished({}, root, fold);
  join_chains(*tree, true);
  return tree;
}

}  // namespace fsdp::cli
