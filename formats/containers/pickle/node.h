// SPDX-License-Identifier: Apache-2.0
// The nodes that pickle values point to, and access to them for the code that builds values.
// Only code of this folder includes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/containers/pickle/key_index.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

struct TextNode : ValueNode {  // kString, kBytes, kByteArray, kBigInt
  using ValueNode::ValueNode;
  std::string text;
};

struct TupleNode : ValueNode {  // `tuple_size` values follow it in the same allocation
  using ValueNode::ValueNode;
  Value* items() noexcept { return reinterpret_cast<Value*>(this + 1); }
};
static_assert(sizeof(TupleNode) % alignof(Value) == 0);

struct ListNode : ValueNode {
  using ValueNode::ValueNode;
  std::vector<Value> items;
  std::uint32_t cycle = 0;  // its number in Note [cycles]
};

struct SetNode : ValueNode {  // kSet, kFrozenSet
  using ValueNode::ValueNode;
  std::vector<Value> items;
  std::unique_ptr<KeyIndex> index;
  std::uint32_t cycle = 0;  // its number in Note [cycles]
};

struct DictNode : ValueNode {
  using ValueNode::ValueNode;
  std::vector<Value::Entry> entries;
  std::unique_ptr<KeyIndex> index;
  std::uint32_t cycle = 0;  // its number in Note [cycles]
};

struct GlobalNode : ValueNode {
  using ValueNode::ValueNode;
  GlobalName name;
};

struct ObjectNode : ValueNode {
  using ValueNode::ValueNode;
  ObjectData data;
  std::unique_ptr<KeyIndex> index;  // index of data.dict_items
  std::uint32_t cycle = 0;          // its number in Note [cycles]
};

struct StorageNode : ValueNode {
  using ValueNode::ValueNode;
  StorageRef storage;
};

// The nodes alive in this thread, plus the values their containers hold.  Inexact if one thread
// makes values and another destroys them.  A reader uses only the difference over its own run.
extern constinit thread_local std::int64_t live_value_count;

struct ValueAccess {
  static ValueNode* node(const Value& value) noexcept { return value.node(); }
  static bool in_memo(const Value& value) noexcept { return (value.head_ & Value::kInMemo) != 0; }
  static void set_in_memo(Value& value) noexcept { value.head_ |= Value::kInMemo; }
  static bool is_same(const Value& a, const Value& b) noexcept {
    return a.kind() == b.kind() && a.tag() == b.tag() && a.word_ == b.word_;
  }
  // Returns a handle that takes over the initial reference of a new node.
  static Value handle(ValueNode* node, std::uint32_t tag = 0) noexcept {
    return {node->kind, reinterpret_cast<std::uintptr_t>(node), tag};
  }

  // Returns the node of a value whose kind the caller has checked.
  template <typename Node>
  static Node& as(const Value& value) noexcept {
    return *static_cast<Node*>(value.node());
  }

  // Makes a node of the kind `kind` with one reference, which the caller hands to `handle`.
  template <typename Node>
  static Node* make(ValueKind kind) {
    Node* const node = new Node(kind);
    ++live_value_count;
    return node;
  }
  // Makes a tuple of the values, which are moved from.
  static Value make_tuple(std::span<Value> items);

  // Marks the node of `child` as held.  Returns the least depth of its holder.
  static std::uint32_t hold(const Value& child) noexcept {
    ValueNode* const node = child.node();
    if (node == nullptr) return 1;
    if (!node->sealed) seal(*node);
    return node->depth + 1;
  }
  static void hold(ValueNode& holder, const Value& child) noexcept {
    holder.depth = std::max(holder.depth, hold(child));
  }
  // Returns the address of a container's number in Note [cycles]; nullptr for nodes without one.
  static std::uint32_t* cycle(ValueNode& node) noexcept {
    switch (node.kind) {
      case ValueKind::kList:
        return &static_cast<ListNode&>(node).cycle;
      case ValueKind::kSet:
      case ValueKind::kFrozenSet:
        return &static_cast<SetNode&>(node).cycle;
      case ValueKind::kDict:
        return &static_cast<DictNode&>(node).cycle;
      case ValueKind::kObject:
        return &static_cast<ObjectNode&>(node).cycle;
      default:
        return nullptr;
    }
  }
  static bool is_hashable(const Value& value) noexcept {
    return value.node() == nullptr || !value.node()->unhashable;
  }

 private:
  static void seal(ValueNode& node) noexcept;
};

}  // namespace fsdp::formats
