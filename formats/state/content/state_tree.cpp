// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/state_tree.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/state/content/key_text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxLeaves = 10'000'000;
// Keys and paths of all leaves together: shared parts can unfold into far more than the file holds.
constexpr std::uint64_t kMaxLeafBytes = 256U << 20U;
// Limit of list positions in a checkpoint that no key names, which are padded with None; real
// checkpoints have few.
constexpr std::size_t kMaxPadding = 1'000'000;

// Decides which values are taken apart.  Each shared part is visited once: nested lists can share
// parts in 2^50 ways.
class Apart {
 public:
  bool operator()(const Value& value) {
    if (const auto entries = mapping_entries(value)) return !entries->empty();
    if (!is_sequence(value) || value.items().empty()) return false;
    if (const auto known = known_.find(value.identity()); known != known_.end())
      return known->second;
    const auto items = value.items();
    const bool apart = std::ranges::any_of(items, [&](const Value& item) {
      return is_tensor(item) || (item.kind() == ValueKind::kOpaque && !back_reference(item)) ||
             mapping_entries(item).has_value() || (is_sequence(item) && (*this)(item));
    });
    return known_[value.identity()] = apart && !leaves_no_trace(value);
  }

 private:
  // Returns whether PyTorch finds no leaf in the value: an empty mapping, or a list of only such
  // values.
  bool leaves_no_trace(const Value& value) {
    if (const auto entries = mapping_entries(value)) return entries->empty();
    if (!is_sequence(value) || value.items().empty()) return false;
    if (const auto known = traceless_.find(value.identity()); known != traceless_.end())
      return known->second;
    const auto items = value.items();
    const bool none =
        std::ranges::all_of(items, [&](const Value& item) { return leaves_no_trace(item); });
    return traceless_[value.identity()] = none;
  }

  std::unordered_map<const void*, bool> known_;
  std::unordered_map<const void*, bool> traceless_;
};

class Walker {
 public:
  std::vector<Leaf> run(const Value& root) {
    walk(root);
    return std::move(out_);
  }

 private:
  void walk(const Value& value) {
    if (!apart_(value)) {
      bytes_ += at_.key.size() + at_.path.size() * sizeof(PathStep);
      if (out_.size() == kMaxLeaves || bytes_ > kMaxLeafBytes) {
        throw Error(ErrorCode::kLimitNodes,
                    cat("the object unfolds into more than ", kMaxLeaves,
                        " values, or their keys take more than ", kMaxLeafBytes, " bytes"));
      }
      at_.value = value;
      out_.push_back(at_);
      return;
    }
    if (const auto entries = mapping_entries(value)) {
      for (const auto& [name, child] : *entries) {
        const std::string text = key_text(name);
        descend(child, text, text);
      }
      return;
    }
    std::int64_t position = 0;
    for (const Value& child : value.items()) {
      descend(child, std::to_string(position), position);
      ++position;
    }
  }

  void descend(const Value& child, const std::string& text, PathStep step) {
    const std::size_t length = at_.key.size();
    if (!at_.path.empty()) at_.key += '.';
    at_.key += text;
    check_key(at_.key);
    at_.path.push_back(std::move(step));
    walk(child);
    at_.path.pop_back();
    at_.key.resize(length);
  }

  Apart apart_;
  Leaf at_;
  std::vector<Leaf> out_;
  std::uint64_t bytes_ = 0;
};

// Rebuilds a tree with its leaves edited.
class Rebuilder {
 public:
  using Edit = std::function<std::optional<Value>(const Leaf& leaf)>;
  explicit Rebuilder(const Edit& edit) : edit_(edit) {}

  // Returns nothing if no leaf below is kept.
  std::optional<Value> run(const Value& value) {
    if (!apart_(value)) {
      at_.value = value;
      return edit_(at_);
    }
    if (const auto entries = mapping_entries(value)) {
      std::vector<Value::Entry> kept;
      for (const auto& [name, child] : *entries) {
        const std::string text = key_text(name);
        if (auto inner = below(child, text, text)) kept.emplace_back(name, std::move(*inner));
      }
      if (kept.empty()) return std::nullopt;
      return with_cycle_number(mapping_like(value, std::move(kept)), cycle_number(value));
    }
    std::vector<Value> kept;
    std::int64_t position = 0;
    for (const Value& child : value.items()) {
      if (auto inner = below(child, std::to_string(position), position))
        kept.push_back(std::move(*inner));
      ++position;
    }
    if (kept.empty()) return std::nullopt;
    return value.kind() == ValueKind::kTuple
               ? Value::tuple(std::move(kept))
               : with_cycle_number(Value::list(std::move(kept)), cycle_number(value));
  }

 private:
  std::optional<Value> below(const Value& child, const std::string& text, PathStep step) {
    const std::size_t length = at_.key.size();
    if (!at_.path.empty()) at_.key += '.';
    at_.key += text;
    at_.path.push_back(std::move(step));
    auto result = run(child);
    at_.path.pop_back();
    at_.key.resize(length);
    return result;
  }

  const Edit& edit_;
  Apart apart_;
  Leaf at_;
};

// A leaf or a container under construction.
struct Member {
  enum class Kind { kLeaf, kMapping, kList };
  Kind kind = Kind::kLeaf;
  bool set = false;
  Value leaf;
  std::vector<std::pair<std::string, std::unique_ptr<Member>>> members;
  std::unordered_map<std::string, std::size_t> by_name;
  std::vector<std::unique_ptr<Member>> items;
};

// Returns the child of `node` that a step leads to, and creates it if it is missing; nullptr if
// `node` is of another kind.
Member* child_of(Member& node, const PathStep& step, std::size_t& padding) {
  const auto* name = std::get_if<std::string>(&step);
  const Member::Kind wanted = name != nullptr ? Member::Kind::kMapping : Member::Kind::kList;
  if (!node.set) {
    node.set = true;
    node.kind = wanted;
  }
  if (node.kind != wanted) return nullptr;
  if (name != nullptr) {
    const auto [at, fresh] = node.by_name.try_emplace(*name, node.members.size());
    if (fresh) node.members.emplace_back(*name, std::make_unique<Member>());
    return node.members[at->second].second.get();
  }
  const auto index = static_cast<std::size_t>(std::get<std::int64_t>(step));
  if (index > node.items.size()) {
    if (index - node.items.size() > kMaxPadding - padding) {
      throw Error(ErrorCode::kLimitNodes, "lists would have to be padded with more than ",
                  kMaxPadding, " entries");
    }
    padding += index - node.items.size();
  }
  while (node.items.size() <= index) node.items.push_back(std::make_unique<Member>());
  return node.items[index].get();
}

Value finished(const Member& node) {
  if (!node.set) return {};  // a list position that no path names: None
  switch (node.kind) {
    case Member::Kind::kLeaf:
      return node.leaf;
    case Member::Kind::kMapping: {
      std::vector<Value::Entry> entries;
      entries.reserve(node.members.size());
      for (const auto& [name, child] : node.members)
        entries.emplace_back(Value::string(name), finished(*child));
      return Value::dict(std::move(entries));
    }
    case Member::Kind::kList: {
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
  return Walker().run(root);
}

Value with_leaves(const Value& root,
                  const std::function<std::optional<Value>(const Leaf& leaf)>& edit) {
  auto result = Rebuilder(edit).run(root);
  return result ? std::move(*result) : Value::dict({});
}

Value pruned(const Value& root, const std::function<bool(const std::string&)>& keep) {
  return with_leaves(root, [&](const Leaf& leaf) {
    return keep(leaf.key) ? std::optional(leaf.value) : std::nullopt;
  });
}

Value nested(const std::vector<Leaf>& leaves) {
  if (leaves.size() == 1 && leaves[0].path.empty()) return leaves[0].value;
  Member root;
  root.set = true;
  root.kind = Member::Kind::kMapping;
  std::size_t padding = 0;
  for (const Leaf& leaf : leaves) {
    Member* node = &root;
    for (const PathStep& step : leaf.path) {
      node = child_of(*node, step, padding);
      if (node == nullptr) break;
    }
    if (node == nullptr || node->set) {
      throw Error(ErrorCode::kKey, quote(leaf.key, 200),
                  ": its path conflicts with that of another key: both are "
                  "the same, or one lies inside the other");
    }
    node->set = true;
    node->leaf = leaf.value;
  }
  return finished(root);
}

}  // namespace fsdp::formats
