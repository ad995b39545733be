// SPDX-License-Identifier: Apache-2.0
#include "formats/container/pickle_machine.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/text.h"
#include "formats/container/pickle_node.h"
#include "formats/container/pickle_opcodes.h"
#include "formats/container/pickle_reader.h"
#include "formats/container/pickle_scan.h"
#include "formats/container/pickle_text.h"

namespace fsdp::formats {
namespace {

// Python's own limit on the digits of an int is about 1.8 KB; random states and hashes are far
// smaller.
constexpr std::uint64_t kMaxIntBytes = 4096;
// Open MARKs beyond the depth limit: a mark belongs to a container that is not closed yet.
constexpr std::size_t kSpareMarks = 16;

using Node = ValueAccess;

// Executes one stream.  The stack holds values; a mark is the height of the stack when it was set.
//
// Note [open and sealed]: a list, dict, set or object is open until something else refers to it: a
// container that takes it, a call, or a fetch from the memo.  Then it is sealed and never changes
// again.  Python's pickler completes each container before it writes the next reference, unless the
// container holds itself; so nothing that is read holds itself, and the depth of what is held is
// final.
class PickleMachine {
 public:
  PickleMachine(const ByteSource& source, std::uint64_t offset, PickleHost& host,
                const PickleLimits& limits, PickleScan scan)
      : reader_(source, offset),
        host_(host),
        limits_(limits),
        fetched_(std::move(scan.fetched)),
        memo_(fetched_.count()),
        memo_is_set_(fetched_.count(), false),
        live_before_(live_value_count) {}

  Value run();

 private:
  void step(PickleOp op);

  // Stack.
  void push(Value value) { stack_.push_back(std::move(value)); }
  void push_new(Value value) {
    push(std::move(value));
    check_node_count();
  }
  Value pop();
  Value& top();
  std::span<Value> since_mark();
  void pop_mark();
  void need(std::size_t count) const;
  void check_node_count() const;
  void check_depth(const Value& value) const;

  // Numbers and text.
  void big_int(std::string_view bytes);
  void long_string(std::uint64_t length, ValueKind kind);
  void python2_string(std::uint64_t length);

  // Containers.
  void tuple(std::span<Value> items, std::size_t height);
  void append(Value& list, std::span<Value> items);
  void set_items(Value& dict, std::span<Value> items);
  void add_items(Value& set, std::span<Value> items);
  void frozen_set();
  template <typename KeyAt>
  void check_key(std::unique_ptr<KeyIndex>& index, std::size_t count, const Value& key,
                 const KeyAt& key_at) const;
  Value& container_below_mark();
  void check_open(const Value& container) const;

  // Memo.
  void put(std::uint64_t slot);
  void get(std::uint64_t slot);

  // Names and calls.
  void global(std::string_view module, std::string_view name);
  void stack_global();
  void call(PickleOp op);
  void build();
  void persistent_id();
  // What the host does, its errors told with the opcode.
  template <typename Ask>
  auto ask(const Ask& question) const {
    try {
      return question();
    } catch (const Error& error) {
      throw error.in(reader_.where());
    }
  }
  [[noreturn]] void fail(ErrorCode code, std::string_view symptom) const {
    reader_.fail(code, symptom);
  }

  PickleReader reader_;
  PickleHost& host_;
  PickleLimits limits_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::size_t fence_ = 0;  // the height at the last mark: what is below is out of reach
  SlotSet fetched_;
  std::vector<Value> memo_;  // by rank among the fetched slots
  std::vector<bool> memo_is_set_;
  std::uint64_t put_count_ = 0;
  struct NameHash {
    std::size_t operator()(std::string_view name) const noexcept { return KeyIndex::hash(name); }
  };
  std::unordered_map<std::string, Value, NameHash> globals_;  // by "module\nname"
  std::string global_name_;                                   // reused for look-ups
  std::int64_t live_before_;
};

Value PickleMachine::run() {
  std::uint64_t block = 0;
  for (;;) {
    const PickleOp op = reader_.opcode();
    if (op == PickleOp::kStop) break;
    step(op);
    if (reader_.block_count() != block) {
      block = reader_.block_count();
      check_node_count();
    }
  }
  if (!marks_.empty()) fail(ErrorCode::kStack, "the pickle ends with an open MARK");
  if (stack_.size() != 1) {
    fail(ErrorCode::kStack,
         cat("the pickle ends with ", stack_.size(), " values on the stack, expected 1"));
  }
  Value result = pop();
  Node::hold(result);
  check_depth(result);
  return result;
}

void PickleMachine::step(PickleOp op) {
  switch (op) {
    case PickleOp::kProto:
      reader_.skip(1);
      break;
    case PickleOp::kFrame:
      reader_.skip(8);
      break;
    case PickleOp::kMark:
      if (marks_.size() >= limits_.max_depth + kSpareMarks) {
        fail(ErrorCode::kLimitDepth, cat("more than ", limits_.max_depth, " levels are open"));
      }
      marks_.push_back(stack_.size());
      fence_ = stack_.size();
      break;
    case PickleOp::kStop:
      break;

    case PickleOp::kNone:
      push(Value());
      break;
    case PickleOp::kNewTrue:
      push(Value::boolean(true));
      break;
    case PickleOp::kNewFalse:
      push(Value::boolean(false));
      break;
    case PickleOp::kBinInt:
      push(Value::integer(static_cast<std::int32_t>(reader_.u32())));
      break;
    case PickleOp::kBinInt1:
      push(Value::integer(reader_.u8()));
      break;
    case PickleOp::kBinInt2:
      push(Value::integer(reader_.u16()));
      break;
    case PickleOp::kLong1:
      big_int(reader_.bytes(reader_.u8()));
      break;
    case PickleOp::kLong4: {
      const std::uint32_t length = reader_.signed_length();
      if (length > kMaxIntBytes) {
        fail(ErrorCode::kIntRange,
             cat("an int of ", length, " bytes; at most ", kMaxIntBytes, " are read"));
      }
      big_int(reader_.bytes(length));
      break;
    }
    case PickleOp::kBinFloat:
      push(Value::floating(std::bit_cast<double>(__builtin_bswap64(reader_.u64()))));
      break;

    case PickleOp::kShortBinString:
      python2_string(reader_.u8());
      break;
    case PickleOp::kBinString:
      python2_string(reader_.signed_length());
      break;
    case PickleOp::kShortBinUnicode:
      long_string(reader_.u8(), ValueKind::kString);
      break;
    case PickleOp::kBinUnicode:
      long_string(reader_.u32(), ValueKind::kString);
      break;
    case PickleOp::kBinUnicode8:
      long_string(reader_.u64(), ValueKind::kString);
      break;
    case PickleOp::kShortBinBytes:
      long_string(reader_.u8(), ValueKind::kBytes);
      break;
    case PickleOp::kBinBytes:
      long_string(reader_.u32(), ValueKind::kBytes);
      break;
    case PickleOp::kBinBytes8:
      long_string(reader_.u64(), ValueKind::kBytes);
      break;
    case PickleOp::kByteArray8:
      long_string(reader_.u64(), ValueKind::kByteArray);
      break;

    case PickleOp::kEmptyTuple:
      push(Node::make_tuple({}));
      break;
    case PickleOp::kTuple: {
      const std::span<Value> items = since_mark();
      pop_mark();
      tuple(items, stack_.size() - items.size());
      break;
    }
    case PickleOp::kTuple1:
    case PickleOp::kTuple2:
    case PickleOp::kTuple3: {
      const auto size =
          static_cast<std::size_t>(op) - static_cast<std::size_t>(PickleOp::kTuple1) + 1;
      need(size);
      tuple(std::span(stack_).last(size), stack_.size() - size);
      break;
    }
    case PickleOp::kEmptyList:
      push_new(Value::list({}));
      break;
    case PickleOp::kAppend:
      need(2);
      append(stack_[stack_.size() - 2], std::span(stack_).last(1));
      stack_.pop_back();
      break;
    case PickleOp::kAppends: {
      append(container_below_mark(), since_mark());
      stack_.resize(marks_.back());
      pop_mark();
      break;
    }
    case PickleOp::kEmptyDict:
      push_new(Value::dict({}));
      break;
    case PickleOp::kSetItem:
      need(3);
      set_items(stack_[stack_.size() - 3], std::span(stack_).last(2));
      stack_.resize(stack_.size() - 2);
      break;
    case PickleOp::kSetItems:
      set_items(container_below_mark(), since_mark());
      stack_.resize(marks_.back());
      pop_mark();
      break;
    case PickleOp::kEmptySet:
      push_new(Value::set({}));
      break;
    case PickleOp::kAddItems:
      add_items(container_below_mark(), since_mark());
      stack_.resize(marks_.back());
      pop_mark();
      break;
    case PickleOp::kFrozenSet:
      frozen_set();
      break;

    case PickleOp::kBinPut:
      put(reader_.u8());
      break;
    case PickleOp::kLongBinPut:
      put(reader_.u32());
      break;
    case PickleOp::kMemoize:
      put(put_count_);
      break;
    case PickleOp::kBinGet:
      get(reader_.u8());
      break;
    case PickleOp::kLongBinGet:
      get(reader_.u32());
      break;

    case PickleOp::kGlobal: {
      // The second line may replace the block that holds the first.
      const std::string module(reader_.line());
      global(module, reader_.line());
      break;
    }
    case PickleOp::kStackGlobal:
      stack_global();
      break;
    case PickleOp::kReduce:
    case PickleOp::kNewObj:
      call(op);
      break;
    case PickleOp::kBuild:
      build();
      break;
    case PickleOp::kBinPersid:
      persistent_id();
      break;
  }
}

void PickleMachine::need(std::size_t count) const {
  if (stack_.size() - fence_ >= count) return;
  if (stack_.size() >= count) {
    fail(ErrorCode::kStack, cat("takes ", count, " values, but ", stack_.size() - fence_,
                                " stand above the last MARK"));
  }
  fail(ErrorCode::kStack, cat("takes ", count, " values from a stack of ", stack_.size()));
}

Value PickleMachine::pop() {
  need(1);
  Value value = std::move(stack_.back());
  stack_.pop_back();
  return value;
}

Value& PickleMachine::top() {
  need(1);
  return stack_.back();
}

std::span<Value> PickleMachine::since_mark() {
  if (marks_.empty()) fail(ErrorCode::kStack, "there is no MARK on the stack");
  return std::span(stack_).subspan(marks_.back());
}

void PickleMachine::pop_mark() {
  marks_.pop_back();
  fence_ = marks_.empty() ? 0 : marks_.back();
}

Value& PickleMachine::container_below_mark() {
  if (marks_.empty()) fail(ErrorCode::kStack, "there is no MARK on the stack");
  const std::size_t below = marks_.size() < 2 ? 0 : marks_[marks_.size() - 2];
  if (marks_.back() <= below) fail(ErrorCode::kStack, "there is no container below the MARK");
  return stack_[marks_.back() - 1];
}

void PickleMachine::check_node_count() const {
  const std::int64_t live =
      live_value_count - live_before_ + static_cast<std::int64_t>(stack_.size());
  if (live > 0 && static_cast<std::uint64_t>(live) > limits_.max_nodes) {
    fail(ErrorCode::kLimitNodes, cat("more than ", limits_.max_nodes, " values are alive"));
  }
}

void PickleMachine::check_depth(const Value& value) const {
  if (value.depth() > limits_.max_depth) {
    fail(ErrorCode::kLimitDepth,
         cat("values are nested more than ", limits_.max_depth, " levels deep"));
  }
}

void PickleMachine::big_int(std::string_view bytes) {
  // Bytes that only repeat the sign are dropped.
  while (bytes.size() > 1) {
    const auto last = static_cast<unsigned char>(bytes.back());
    const bool is_negative = (static_cast<unsigned char>(bytes[bytes.size() - 2]) & 0x80U) != 0;
    if (last != (is_negative ? 0xFFU : 0U)) break;
    bytes.remove_suffix(1);
  }
  if (bytes.size() > sizeof(std::int64_t)) return push_new(Value::big_int(std::string(bytes)));
  const bool is_negative =
      !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
  std::uint64_t number = is_negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    number = number << 8U | static_cast<unsigned char>(bytes[i]);
  }
  push(Value::integer(static_cast<std::int64_t>(number)));
}

void PickleMachine::long_string(std::uint64_t length, ValueKind kind) {
  if (length > limits_.max_string_bytes) {
    fail(ErrorCode::kLimitSize, cat("a ", kind_name(kind), " of ", length, " bytes; at most ",
                                    limits_.max_string_bytes, " are read"));
  }
  const std::string_view text = reader_.bytes(length);
  if (kind == ValueKind::kBytes) return push_new(Value::bytes(std::string(text)));
  if (kind == ValueKind::kByteArray) return push_new(Value::byte_array(std::string(text)));
  if (!is_python_utf8(text)) {
    fail(ErrorCode::kUtf8, cat("the str ", quote(text), " is not UTF-8"));
  }
  push_new(Value::string(std::string(text)));
}

void PickleMachine::python2_string(std::uint64_t length) {
  if (length > limits_.max_string_bytes) {
    fail(ErrorCode::kLimitSize,
         cat("a str of ", length, " bytes; at most ", limits_.max_string_bytes, " are read"));
  }
  const std::string_view text = reader_.bytes(length);
  push_new(is_ascii(text) ? Value::string(std::string(text)) : Value::bytes(std::string(text)));
}

// Replaces what stands on the stack from `height` on, which are the items, by one tuple.
void PickleMachine::tuple(std::span<Value> items, std::size_t height) {
  Value result = Node::make_tuple(items);
  stack_.resize(height);
  push(std::move(result));
  check_depth(stack_.back());
  check_node_count();
}

void PickleMachine::check_open(const Value& container) const {
  if (Node::node(container)->sealed) {
    fail(ErrorCode::kCycle, cat("would change a ", kind_name(container.kind()),
                                " that is referred to already, as one that holds itself is"));
  }
}

void PickleMachine::append(Value& list, std::span<Value> items) {
  std::vector<Value>* to = nullptr;
  if (list.kind() == ValueKind::kList) {
    to = &Node::as<ListNode>(list).items;
  } else if (list.kind() == ValueKind::kObject) {
    to = &Node::as<ObjectNode>(list).data.list_items;
    if (list.as_object()->built) fail(ErrorCode::kType, "appends to an object after its BUILD");
  } else {
    fail(ErrorCode::kType, cat("appends to a ", kind_name(list.kind()), ", expected a list"));
  }
  check_open(list);
  for (const Value& item : items) Node::hold(*Node::node(list), item);
  to->insert(to->end(), std::move_iterator(items.begin()), std::move_iterator(items.end()));
  live_value_count += static_cast<std::int64_t>(items.size());
  check_depth(list);
  check_node_count();
}

template <typename KeyAt>
void PickleMachine::check_key(std::unique_ptr<KeyIndex>& index, std::size_t count, const Value& key,
                              const KeyAt& key_at) const {
  if (!Node::is_hashable(key)) {
    fail(ErrorCode::kKey, cat("a ", kind_name(key.kind()), " cannot be a key"));
  }
  if (count >= UINT32_MAX - 1) fail(ErrorCode::kLimitNodes, "more than 2^32 keys");
  if (!add_key(index, count, key, key_at)) {
    std::string text;
    if (const std::string* const name = key.as_string()) text = " " + quote(*name);
    if (const auto number = key.as_int()) text = cat(" ", *number);
    fail(ErrorCode::kKey, cat("the key", text, " occurs twice"));
  }
}

void PickleMachine::set_items(Value& dict, std::span<Value> items) {
  if (items.size() % 2 != 0) {
    fail(ErrorCode::kStack, cat("an odd number of items, ", items.size(), ", for keys and values"));
  }
  std::vector<Value::Entry>* to = nullptr;
  std::unique_ptr<KeyIndex>* index = nullptr;
  if (dict.kind() == ValueKind::kDict) {
    to = &Node::as<DictNode>(dict).entries;
    index = &Node::as<DictNode>(dict).index;
  } else if (dict.kind() == ValueKind::kObject) {
    to = &Node::as<ObjectNode>(dict).data.dict_items;
    index = &Node::as<ObjectNode>(dict).index;
    if (dict.as_object()->built) fail(ErrorCode::kType, "sets items of an object after its BUILD");
  } else {
    fail(ErrorCode::kType, cat("sets items of a ", kind_name(dict.kind()), ", expected a dict"));
  }
  check_open(dict);
  ValueNode& holder = *Node::node(dict);
  const std::size_t added = items.size() / 2;
  if (to->capacity() - to->size() < added) to->reserve(to->size() + std::max(added, to->size()));
  const auto key_at = [to](std::size_t i) -> const Value& { return (*to)[i].first; };
  for (std::size_t i = 0; i < items.size(); i += 2) {
    check_key(*index, to->size(), items[i], key_at);
    Node::hold(holder, items[i]);
    Node::hold(holder, items[i + 1]);
    to->emplace_back(std::move(items[i]), std::move(items[i + 1]));
    live_value_count += 2;
  }
  check_depth(dict);
  check_node_count();
}

void PickleMachine::add_items(Value& set, std::span<Value> items) {
  if (set.kind() != ValueKind::kSet && set.kind() != ValueKind::kFrozenSet) {
    fail(ErrorCode::kType, cat("adds items to a ", kind_name(set.kind()), ", expected a set"));
  }
  check_open(set);
  auto& node = Node::as<SetNode>(set);
  const auto key_at = [&node](std::size_t i) -> const Value& { return node.items[i]; };
  for (Value& item : items) {
    check_key(node.index, node.items.size(), item, key_at);
    Node::hold(node, item);
    node.items.push_back(std::move(item));
    ++live_value_count;
  }
  check_depth(set);
  check_node_count();
}

void PickleMachine::frozen_set() {
  Value result = Value::frozen_set({});
  add_items(result, since_mark());
  Node::hold(result);  // it never changes again
  stack_.resize(marks_.back());
  pop_mark();
  push_new(std::move(result));
}

void PickleMachine::put(std::uint64_t slot) {
  ++put_count_;
  Value& value = top();
  if (!fetched_.contains(slot)) return;
  const std::uint32_t rank = fetched_.rank(slot);
  if (value.kind() == ValueKind::kOpaque) Node::set_in_memo(value);
  memo_[rank] = value;
  memo_is_set_[rank] = true;
}

void PickleMachine::get(std::uint64_t slot) {
  // The scan has seen that each slot is put before it is fetched; this guards against a file that
  // changed since.
  if (!fetched_.contains(slot) || !memo_is_set_[fetched_.rank(slot)]) {
    fail(ErrorCode::kMemo, cat("memo slot ", slot, " is not defined"));
  }
  const Value& value = memo_[fetched_.rank(slot)];
  Node::hold(value);
  push(value);
}

void PickleMachine::global(std::string_view module, std::string_view name) {
  global_name_.assign(module).append("\n").append(name);
  const auto known = globals_.find(global_name_);
  if (known != globals_.end()) return push(known->second);
  if (!is_global_name(module) || !is_global_name(name)) {
    fail(ErrorCode::kGlobal,
         cat("module ", quote(module), " and name ", quote(name), " are no names of Python"));
  }
  const std::int32_t tag = ask([&] { return host_.global(module, name); });
  Value value = Value::global(std::string(module), std::string(name), tag);
  globals_.emplace(global_name_, value);
  push_new(std::move(value));
}

void PickleMachine::stack_global() {
  need(2);
  const Value name = pop();
  const Value module = pop();
  if (name.as_string() == nullptr || module.as_string() == nullptr) {
    fail(ErrorCode::kGlobal, cat("names a global by a ", kind_name(module.kind()), " and a ",
                                 kind_name(name.kind()), ", expected two str"));
  }
  global(*module.as_string(), *name.as_string());
}

void PickleMachine::call(PickleOp op) {
  need(2);
  Value args = pop();
  const Value callable = pop();
  if (args.kind() != ValueKind::kTuple) {
    fail(ErrorCode::kReduce,
         cat("the arguments are a ", kind_name(args.kind()), ", expected a tuple"));
  }
  switch (callable.kind()) {
    case ValueKind::kGlobal:
    case ValueKind::kObject:
    case ValueKind::kOpaque:
      break;
    default:
      fail(ErrorCode::kReduce, cat("a ", kind_name(callable.kind()), " cannot be called"));
  }
  Node::hold(callable);
  Node::hold(args);
  push_new(ask([&] {
    return op == PickleOp::kReduce ? host_.reduce(callable, std::move(args))
                                   : host_.new_object(callable, std::move(args));
  }));
  check_depth(stack_.back());
}

void PickleMachine::build() {
  need(2);
  Value state = pop();
  Value& object = stack_.back();
  bool is_shared = false;
  if (object.kind() == ValueKind::kObject) {
    check_open(object);
    is_shared = Node::node(object)->references > 1;
  } else if (object.kind() == ValueKind::kOpaque) {
    is_shared = Node::in_memo(object);
  } else {
    fail(ErrorCode::kBuild,
         cat("sets the state of a ", kind_name(object.kind()), ", expected an object"));
  }
  Node::hold(state);
  if (is_shared) {
    const Value result = ask([&] { return host_.build(object, std::move(state), true); });
    if (!Node::is_same(result, object)) {
      fail(ErrorCode::kBuild, "an object that is referred to again cannot be replaced");
    }
  } else {
    object = ask([&] { return host_.build(std::move(object), std::move(state), false); });
  }
  check_depth(object);
  check_node_count();
}

void PickleMachine::persistent_id() {
  Value id = pop();
  Node::hold(id);
  push_new(ask([&] { return host_.persistent_id(std::move(id)); }));
  check_depth(stack_.back());
}

}  // namespace

Value PickleHost::reduce(const Value& callable, Value args) {
  ObjectData data;
  data.callable = callable;
  data.args = std::move(args);
  return Value::object(std::move(data));
}

Value PickleHost::new_object(const Value& cls, Value args) {
  ObjectData data;
  data.callable = cls;
  data.args = std::move(args);
  data.by_new = true;
  return Value::object(std::move(data));
}

Value PickleHost::build(Value object, Value state, bool /*shared*/) {
  if (object.kind() != ValueKind::kObject) {
    throw Error(ErrorCode::kBuild,
                cat("sets the state of a ", kind_name(object.kind()), ", expected an object"));
  }
  auto& node = Node::as<ObjectNode>(object);
  if (node.data.built)
    throw Error(ErrorCode::kBuild, "sets the state of an object for the second time");
  Node::hold(node, state);
  node.data.state = std::move(state);
  node.data.built = true;
  return object;
}

Value PickleHost::persistent_id(Value id) {
  const std::span<const Value> items = id.items();
  const std::string* const kind = items.empty() ? nullptr : items[0].as_string();
  throw Error(ErrorCode::kPersid, cat("a persistent id", kind == nullptr ? "" : " " + quote(*kind),
                                      " has no meaning here"));
}

Value read_pickle(const ByteSource& source, PickleHost& host, const PickleLimits& limits) {
  return PickleMachine(source, 0, host, limits, scan_pickle(source, 0, true)).run();
}

Value read_pickle_prefix(const ByteSource& source, std::uint64_t& offset, PickleHost& host,
                         const PickleLimits& limits) {
  PickleScan scan = scan_pickle(source, offset, false);
  const std::uint64_t end = scan.end_offset;
  Value result = PickleMachine(source, offset, host, limits, std::move(scan)).run();
  offset = end;
  return result;
}

}  // namespace fsdp::formats
