// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/fill.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/keys.h"
#include "formats/containers/pickle/node.h"

namespace fsdp::formats {
namespace {

using Node = ValueAccess;

[[noreturn]] void throw_sealed(std::string_view kind) {
  throw Error(ErrorCode::kCycle, "would change a ", kind,
              " that something already refers to; it may contain itself");
}

[[noreturn]] void throw_wrong_kind(std::string_view what, const Value& value,
                                   std::string_view expected) {
  if (back_reference(value)) throw_sealed("container");
  throw Error(ErrorCode::kType, what, " a ", kind_name(value.kind()), ", expected a ", expected);
}

[[noreturn]] void throw_duplicate(const Value& key) {
  std::string text;
  if (const std::string* const name = key.as_string()) text = cat(" ", quote(*name));
  if (const auto number = key.as_int()) text = cat(" ", *number);
  throw Error(ErrorCode::kKey, "the key", text, " occurs twice");
}

void check_not_built(const Value& object, std::string_view what) {
  if (object.as_object()->built)
    throw Error(ErrorCode::kType, what, " an object that has its state already");
}

// Checks that `key` may follow the first `count` keys; `key_at(i)` is key i.
template <typename KeyAt>
void check_key(std::unique_ptr<KeyIndex>& index, std::size_t count, const Value& key,
               const KeyAt& key_at) {
  if (!Node::is_hashable(key))
    throw Error(ErrorCode::kKey, "a ", kind_name(key.kind()), " cannot be a key");
  if (count >= UINT32_MAX - 1) throw Error(ErrorCode::kLimitNodes, "more than 2^32 - 2 keys");
  if (!add_key(index, count, key, key_at)) throw_duplicate(key);
}

template <typename Item>
void make_room(std::vector<Item>& items, std::size_t added) {
  if (items.capacity() - items.size() >= added) return;
  items.reserve(items.size() + std::max(added, items.size()));
}

void fill_set(SetNode& set, std::span<Value> items) {
  make_room(set.items, items.size());
  const auto key_at = [&set](std::size_t i) -> const Value& { return set.items[i]; };
  for (Value& item : items) {
    check_key(set.index, set.items.size(), item, key_at);
    Node::hold(set, item);
    set.items.push_back(std::move(item));
    ++live_value_count;
  }
}

}  // namespace

Value make_list() {
  auto* const node = Node::make<ListNode>(ValueKind::kList);
  node->unhashable = true;
  return Node::handle(node);
}

Value make_dict() {
  auto* const node = Node::make<DictNode>(ValueKind::kDict);
  node->unhashable = true;
  return Node::handle(node);
}

Value make_object(const Value& callable, Value args, bool by_new) {
  auto* const node = Node::make<ObjectNode>(ValueKind::kObject);
  Node::hold(*node, callable);
  Node::hold(*node, args);
  node->data.callable = callable;
  node->data.args = std::move(args);
  node->data.by_new = by_new;
  return Node::handle(node);
}

void check_open(const Value& container) {
  if (Node::node(container)->sealed) throw_sealed(kind_name(container.kind()));
}

void append_items(Value& list, std::span<Value> items) {
  std::vector<Value>* to = nullptr;
  if (list.kind() == ValueKind::kList) {
    to = &Node::as<ListNode>(list).items;
  } else if (list.kind() == ValueKind::kObject) {
    check_not_built(list, "appends to");
    to = &Node::as<ObjectNode>(list).data.list_items;
  } else {
    throw_wrong_kind("appends to", list, "list");
  }
  check_open(list);
  make_room(*to, items.size());
  for (Value& item : items) {
    Node::hold(*Node::node(list), item);
    to->push_back(std::move(item));
  }
  live_value_count += static_cast<std::int64_t>(items.size());
}

void set_items(Value& dict, std::span<Value> keys_and_values) {
  if (keys_and_values.size() % 2 != 0)
    throw Error(ErrorCode::kStack, "an odd number of keys and values: ", keys_and_values.size());
  std::vector<Value::Entry>* to = nullptr;
  std::unique_ptr<KeyIndex>* index = nullptr;
  if (dict.kind() == ValueKind::kDict) {
    to = &Node::as<DictNode>(dict).entries;
    index = &Node::as<DictNode>(dict).index;
  } else if (dict.kind() == ValueKind::kObject) {
    check_not_built(dict, "sets items of");
    to = &Node::as<ObjectNode>(dict).data.dict_items;
    index = &Node::as<ObjectNode>(dict).index;
  } else {
    throw_wrong_kind("sets items of", dict, "dict");
  }
  check_open(dict);
  ValueNode& holder = *Node::node(dict);
  make_room(*to, keys_and_values.size() / 2);
  const auto key_at = [to](std::size_t i) -> const Value& { return (*to)[i].first; };
  for (std::size_t i = 0; i < keys_and_values.size(); i += 2) {
    Value& key = keys_and_values[i];
    Value& value = keys_and_values[i + 1];
    check_key(*index, to->size(), key, key_at);
    Node::hold(holder, key);
    Node::hold(holder, value);
    to->emplace_back(std::move(key), std::move(value));
    live_value_count += 2;
  }
}

void add_items(Value& set, std::span<Value> items) {
  if (set.kind() != ValueKind::kSet) throw_wrong_kind("adds items to", set, "set");
  check_open(set);
  fill_set(Node::as<SetNode>(set), items);
}

Value make_frozen_set(std::span<Value> items) {
  Value result = Value::frozen_set({});
  fill_set(Node::as<SetNode>(result), items);
  Node::hold(result);  // a frozen set never changes
  return result;
}

void build_object(Value& object, Value state) {
  if (object.kind() != ValueKind::kObject) {
    throw Error(ErrorCode::kBuild, "sets the state of a ", kind_name(object.kind()),
                ", expected an object");
  }
  check_open(object);
  auto& node = Node::as<ObjectNode>(object);
  if (node.data.built)
    throw Error(ErrorCode::kBuild, "sets the state of an object for the second time");
  Node::hold(node, state);
  node.data.state = std::move(state);
  node.data.built = true;
}

}  // namespace fsdp::formats
