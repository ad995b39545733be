// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/node.h"

#include <new>
#include <utility>

namespace fsdp::formats {

constinit thread_local std::int64_t live_value_count = 0;

namespace {

static_assert(sizeof(Value) == 16);

void hold_items(ValueNode& holder, std::span<const Value> items) {
  for (const Value& item : items) ValueAccess::hold(holder, item);
  live_value_count += static_cast<std::int64_t>(items.size());
}

void hold_entries(ValueNode& holder, std::span<const Value::Entry> entries) {
  for (const auto& [key, value] : entries) {
    ValueAccess::hold(holder, key);
    ValueAccess::hold(holder, value);
  }
  live_value_count += 2 * static_cast<std::int64_t>(entries.size());
}

}  // namespace

Value Value::of_text(ValueKind kind, std::string text) {
  auto* const node = ValueAccess::make<TextNode>(kind);
  node->text = std::move(text);
  node->unhashable = kind == ValueKind::kByteArray;
  return ValueAccess::handle(node);
}

Value Value::list(std::vector<Value> items) {
  auto* const node = ValueAccess::make<ListNode>(ValueKind::kList);
  node->unhashable = true;
  hold_items(*node, items);
  node->items = std::move(items);
  return ValueAccess::handle(node);
}

Value Value::tuple(std::vector<Value> items) {
  return ValueAccess::make_tuple(items);
}

Value Value::of_set(ValueKind kind, std::vector<Value> items) {
  auto* const node = ValueAccess::make<SetNode>(kind);
  node->unhashable = kind == ValueKind::kSet;
  hold_items(*node, items);
  node->items = std::move(items);
  return ValueAccess::handle(node);
}

Value Value::dict(std::vector<Entry> entries) {
  auto* const node = ValueAccess::make<DictNode>(ValueKind::kDict);
  node->unhashable = true;
  hold_entries(*node, entries);
  node->entries = std::move(entries);
  return ValueAccess::handle(node);
}

Value Value::global(std::string module, std::string name, std::int32_t tag) {
  auto* const node = ValueAccess::make<GlobalNode>(ValueKind::kGlobal);
  node->name = {std::move(module), std::move(name)};
  return ValueAccess::handle(node, static_cast<std::uint32_t>(tag));
}

Value Value::object(ObjectData data) {
  auto* const node = ValueAccess::make<ObjectNode>(ValueKind::kObject);
  ValueAccess::hold(*node, data.callable);
  ValueAccess::hold(*node, data.args);
  if (data.built) ValueAccess::hold(*node, data.state);
  hold_items(*node, data.list_items);
  hold_entries(*node, data.dict_items);
  node->data = std::move(data);
  return ValueAccess::handle(node);
}

Value Value::storage(StorageRef storage) {
  auto* const node = ValueAccess::make<StorageNode>(ValueKind::kStorage);
  node->storage = std::move(storage);
  return ValueAccess::handle(node);
}

Value ValueAccess::make_tuple(std::span<Value> items) {
  if (items.empty()) return {ValueKind::kTuple, 0};
  void* const memory = ::operator new(sizeof(TupleNode) + items.size() * sizeof(Value));
  auto* const node = new (memory) TupleNode(ValueKind::kTuple);
  node->tuple_size = static_cast<std::uint32_t>(items.size());
  Value* to = node->items();
  for (Value& item : items) {
    hold(*node, item);
    node->unhashable = node->unhashable || !is_hashable(item);
    new (to++) Value(std::move(item));
  }
  live_value_count += 1 + static_cast<std::int64_t>(items.size());
  return handle(node);
}

void ValueAccess::seal(ValueNode& node) noexcept {
  node.sealed = true;
  // A dict no longer grows when it is sealed, so its index is dropped; `find` makes it again.
  if (node.kind == ValueKind::kDict) static_cast<DictNode&>(node).index.reset();
  if (node.kind == ValueKind::kSet) static_cast<SetNode&>(node).index.reset();
  if (node.kind == ValueKind::kObject) static_cast<ObjectNode&>(node).index.reset();
}

namespace {

// The nodes whose last reference is gone but whose content is not yet released.
class DeadNodes {
 public:
  explicit DeadNodes(ValueNode* first) : first_(first) { first->next_dead = nullptr; }
  ValueNode* take() {
    ValueNode* const node = first_;
    if (node != nullptr) first_ = node->next_dead;
    return node;
  }
  void add(ValueNode* node) {
    node->next_dead = first_;
    first_ = node;
  }

 private:
  ValueNode* first_;
};

}  // namespace

// Children are detached before a node is deleted, so that no destructor runs inside another one.
void Value::destroy(ValueNode* node) noexcept {
  DeadNodes dead(node);
  const auto drop = [&dead](Value& value) {
    ValueNode* const child = value.node();
    value.head_ = 0;
    if (child != nullptr && --child->references == 0) dead.add(child);
  };
  const auto drop_items = [&](std::vector<Value>& items) {
    for (Value& item : items) drop(item);
    live_value_count -= static_cast<std::int64_t>(items.size());
  };
  const auto drop_entries = [&](std::vector<Entry>& entries) {
    for (auto& [key, value] : entries) {
      drop(key);
      drop(value);
    }
    live_value_count -= 2 * static_cast<std::int64_t>(entries.size());
  };
  while (ValueNode* const next = dead.take()) {
    --live_value_count;
    switch (next->kind) {
      case ValueKind::kTuple: {
        auto* const tuple = static_cast<TupleNode*>(next);
        for (std::uint32_t i = 0; i < tuple->tuple_size; ++i) drop(tuple->items()[i]);
        live_value_count -= tuple->tuple_size;
        ::operator delete(tuple);
        break;
      }
      case ValueKind::kList:
        drop_items(static_cast<ListNode*>(next)->items);
        delete static_cast<ListNode*>(next);
        break;
      case ValueKind::kSet:
      case ValueKind::kFrozenSet:
        drop_items(static_cast<SetNode*>(next)->items);
        delete static_cast<SetNode*>(next);
        break;
      case ValueKind::kDict:
        drop_entries(static_cast<DictNode*>(next)->entries);
        delete static_cast<DictNode*>(next);
        break;
      case ValueKind::kObject: {
        auto* const object = static_cast<ObjectNode*>(next);
        drop(object->data.callable);
        drop(object->data.args);
        drop(object->data.state);
        drop_items(object->data.list_items);
        drop_entries(object->data.dict_items);
        delete object;
        break;
      }
      case ValueKind::kGlobal:
        delete static_cast<GlobalNode*>(next);
        break;
      case ValueKind::kStorage:
        delete static_cast<StorageNode*>(next);
        break;
      default:
        delete static_cast<TextNode*>(next);
        break;
    }
  }
}

const std::string* Value::as_string() const noexcept {
  return kind() == ValueKind::kString ? &ValueAccess::as<TextNode>(*this).text : nullptr;
}

const std::string* Value::as_bytes() const noexcept {
  const bool is_bytes = kind() == ValueKind::kBytes || kind() == ValueKind::kByteArray ||
                        kind() == ValueKind::kBigInt;
  return is_bytes ? &ValueAccess::as<TextNode>(*this).text : nullptr;
}

const GlobalName* Value::as_global() const noexcept {
  return kind() == ValueKind::kGlobal ? &ValueAccess::as<GlobalNode>(*this).name : nullptr;
}

const ObjectData* Value::as_object() const noexcept {
  return kind() == ValueKind::kObject ? &ValueAccess::as<ObjectNode>(*this).data : nullptr;
}

const StorageRef* Value::as_storage() const noexcept {
  return kind() == ValueKind::kStorage ? &ValueAccess::as<StorageNode>(*this).storage : nullptr;
}

std::span<const Value> Value::items() const noexcept {
  switch (kind()) {
    case ValueKind::kTuple:
      if (node() == nullptr) return {};
      return {static_cast<TupleNode*>(node())->items(), node()->tuple_size};
    case ValueKind::kList:
      return ValueAccess::as<ListNode>(*this).items;
    case ValueKind::kSet:
    case ValueKind::kFrozenSet:
      return ValueAccess::as<SetNode>(*this).items;
    default:
      return {};
  }
}

std::span<const Value::Entry> Value::entries() const noexcept {
  if (kind() != ValueKind::kDict) return {};
  return ValueAccess::as<DictNode>(*this).entries;
}

const Value* Value::find(std::string_view key) const noexcept {
  if (kind() != ValueKind::kDict) return nullptr;
  auto& dict = ValueAccess::as<DictNode>(*this);
  const auto is_key = [&](std::size_t i) {
    const std::string* const text = dict.entries[i].first.as_string();
    return text != nullptr && *text == key;
  };
  if (dict.entries.size() <= kUnindexedKeys || !dict.sealed) {
    for (std::size_t i = 0; i < dict.entries.size(); ++i) {
      if (is_key(i)) return &dict.entries[i].second;
    }
    return nullptr;
  }
  if (dict.index == nullptr) {
    dict.index = std::make_unique<KeyIndex>();
    for (std::size_t i = 0; i < dict.entries.size(); ++i) {
      const std::string* const text = dict.entries[i].first.as_string();
      if (text != nullptr) dict.index->insert(KeyIndex::hash(*text), static_cast<std::uint32_t>(i));
    }
  }
  const auto position = dict.index->find(KeyIndex::hash(key), is_key);
  return position.has_value() ? &dict.entries[*position].second : nullptr;
}

}  // namespace fsdp::formats
