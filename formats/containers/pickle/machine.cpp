// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/machine.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/cycles.h"
#include "formats/containers/pickle/fill.h"
#include "formats/containers/pickle/key_index.h"
#include "formats/containers/pickle/literals.h"
#include "formats/containers/pickle/memo.h"
#include "formats/containers/pickle/node.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"
#include "formats/containers/pickle/scan.h"
#include "formats/containers/pickle/text.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {
namespace {

// Far beyond the 2 to 20 KB of a random generator's state, the largest ints that checkpoints hold.
constexpr std::uint64_t kMaxIntBytes = std::uint64_t{1} << 16U;
// MARKs that may be open beyond the depth limit, for containers that are not closed yet.
constexpr std::uint64_t kSpareMarks = 16;

using Node = ValueAccess;

// Only values above the last mark are accessible.
class PickleStack : NotCopied {
 public:
  explicit PickleStack(std::uint64_t max_values) : max_values_(max_values) {}
  ~PickleStack() {
    drop_to(0);
    std::allocator<Value>().deallocate(values_, capacity_);
  }

  std::size_t size() const { return size_; }
  std::size_t reachable() const { return size_ - fence_; }

  // Throws: kLimitNodes if it would grow far beyond max_values.
  void push(Value value) {
    if (size_ == capacity_) grow();
    std::construct_at(values_ + size_, std::move(value));
    ++size_;
  }
  // Requires: size() > 0.
  Value pop() {
    --size_;
    Value value(
        std::move(values_[size_]));  // the moved-from value is None, which needs no destructor
    return value;
  }
  // Returns the value with `above` others above it.  Requires: above < size().
  Value& top(std::size_t above = 0) { return values_[size_ - 1 - above]; }
  // The last `count` values.  Requires: count <= size().
  std::span<Value> last(std::size_t count) { return {values_ + (size_ - count), count}; }
  // Removes all values but the lowest `size`.  Requires: size <= size().
  void drop_to(std::size_t size) {
    while (size_ > size) std::destroy_at(values_ + --size_);
  }

  // Records a mark: the present height of the stack.
  void mark() {
    marks_.push_back(size_);
    fence_ = size_;
  }
  std::size_t mark_count() const { return marks_.size(); }
  // The values above the last mark.  Requires: mark_count() > 0.
  std::span<Value> since_mark() { return last(size_ - fence_); }
  // The value just below the last mark, nullptr if there is another mark or nothing.  Requires:
  // mark_count() > 0.
  Value* below_mark() {
    const std::size_t reach = marks_.size() < 2 ? 0 : marks_[marks_.size() - 2];
    return fence_ > reach ? values_ + (fence_ - 1) : nullptr;
  }
  // Removes the last mark and all values above it.  Requires: mark_count() > 0.
  void drop_mark() {
    drop_to(fence_);
    marks_.pop_back();
    fence_ = marks_.empty() ? 0 : marks_.back();
  }

 private:
  void grow() {
    if (capacity_ > max_values_)
      throw Error(ErrorCode::kLimitNodes, "more than ", max_values_, " values are on the stack");
    const std::size_t capacity = std::max<std::size_t>(64, capacity_ * 2);
    Value* const values = std::allocator<Value>().allocate(capacity);
    std::uninitialized_move_n(values_, size_, values);
    std::allocator<Value>().deallocate(values_, capacity_);
    values_ = values;
    capacity_ = capacity;
  }

  const std::uint64_t max_values_;
  Value* values_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::vector<std::size_t> marks_;
  std::size_t fence_ = 0;  // the last mark, 0 if there is none
};

// Executes one stream that has been scanned.  See Note [open and sealed].
class PickleMachine {
 public:
  PickleMachine(const ByteSource& source, std::uint64_t offset, PickleHost& host,
                const PickleLimits& limits, PickleScan scan, PickleCycles cycles = {})
      : reader_(source, offset),
        host_(host),
        limits_(limits),
        stack_(limits.max_nodes),
        memo_(std::move(scan.fetched)),
        cycles_(std::move(cycles)),
        live_before_(live_value_count) {}

  Value run() {
    for (PickleOp op = reader_.opcode(); op != PickleOp::kStop; op = reader_.opcode()) execute(op);
    if (stack_.mark_count() != 0) fail(ErrorCode::kStack, "the pickle ends with an open MARK");
    if (stack_.size() != 1) {
      fail(ErrorCode::kStack,
           cat("the pickle ends with ", stack_.size(), " values on the stack, expected 1"));
    }
    check_top();
    Node::hold(stack_.top());
    return stack_.pop();
  }

 private:
  // Runs `action` and adds the opcode to the errors that it throws.
  template <typename Action>
  decltype(auto) located(const Action& action) const {
    try {
      return action();
    } catch (const Error& error) {
      throw error.in(reader_.where());
    }
  }

  void execute(PickleOp op) {
    switch (op) {
      case PickleOp::kProto:
        return reader_.skip(1);
      case PickleOp::kFrame:
        return reader_.skip(8);
      case PickleOp::kMark:
        if (stack_.mark_count() >= limits_.max_depth + kSpareMarks) throw_too_deep();
        return stack_.mark();
      case PickleOp::kNone:
        return stack_.push(Value());
      case PickleOp::kNewTrue:
        return stack_.push(Value::boolean(true));
      case PickleOp::kNewFalse:
        return stack_.push(Value::boolean(false));
      case PickleOp::kBinInt:
        return stack_.push(Value::integer(static_cast<std::int32_t>(reader_.u32())));
      case PickleOp::kBinInt1:
        return stack_.push(Value::integer(reader_.u8()));
      case PickleOp::kBinInt2:
        return stack_.push(Value::integer(reader_.u16()));
      case PickleOp::kLong1:
        return push_new(decode_long(reader_.bytes(reader_.u8())));
      case PickleOp::kLong4: {
        const std::uint32_t length = reader_.signed_length();
        if (length > kMaxIntBytes) {
          fail(ErrorCode::kIntRange,
               cat("an int of ", length, " bytes; at most ", kMaxIntBytes, " are read"));
        }
        return push_new(decode_long(reader_.bytes(length)));
      }
      case PickleOp::kBinFloat:
        return stack_.push(
            Value::floating(std::bit_cast<double>(__builtin_bswap64(reader_.u64()))));

      case PickleOp::kShortBinString:
        return python2_text(reader_.u8());
      case PickleOp::kBinString:
        return python2_text(reader_.signed_length());
      case PickleOp::kShortBinUnicode:
        return text(reader_.u8(), ValueKind::kString);
      case PickleOp::kBinUnicode:
        return text(reader_.u32(), ValueKind::kString);
      case PickleOp::kBinUnicode8:
        return text(reader_.u64(), ValueKind::kString);
      case PickleOp::kShortBinBytes:
        return text(reader_.u8(), ValueKind::kBytes);
      case PickleOp::kBinBytes:
        return text(reader_.u32(), ValueKind::kBytes);
      case PickleOp::kBinBytes8:
        return text(reader_.u64(), ValueKind::kBytes);
      case PickleOp::kByteArray8:
        return text(reader_.u64(), ValueKind::kByteArray);

      case PickleOp::kEmptyTuple:
        stack_.push(Node::make_tuple({}));
        break;
      case PickleOp::kTuple: {
        need_mark();
        Value result = Node::make_tuple(stack_.since_mark());
        stack_.drop_mark();
        return push_new(std::move(result));
      }
      case PickleOp::kTuple1:
        return tuple(1);
      case PickleOp::kTuple2:
        return tuple(2);
      case PickleOp::kTuple3:
        return tuple(3);
      case PickleOp::kEmptyList:
        return push_new(make_list());
      case PickleOp::kEmptyDict:
        return push_new(make_dict());
      case PickleOp::kEmptySet:
        push_new(Value::set({}));
        break;
      case PickleOp::kAppend:
        return fill(1, append_items);
      case PickleOp::kAppends:
        return fill_since_mark(append_items);
      case PickleOp::kSetItem:
        return fill(2, set_items);
      case PickleOp::kSetItems:
        return fill_since_mark(set_items);
      case PickleOp::kAddItems:
        return fill_since_mark(add_items);
      case PickleOp::kFrozenSet: {
        need_mark();
        Value result = located([&] { return make_frozen_set(stack_.since_mark()); });
        stack_.drop_mark();
        return push_new(std::move(result));
      }

      case PickleOp::kBinPut:
        return put(reader_.u8());
      case PickleOp::kLongBinPut:
        return put(reader_.u32());
      case PickleOp::kMemoize:
        return put(put_count_);
      case PickleOp::kBinGet:
        return get(reader_.u8());
      case PickleOp::kLongBinGet:
        return get(reader_.u32());

      case PickleOp::kGlobal: {
        // A copy: reading the second line may replace the block that holds the first.
        const std::string module(reader_.line());
        return global(module, reader_.line());
      }
      case PickleOp::kStackGlobal:
        return stack_global();
      case PickleOp::kReduce:
      case PickleOp::kNewObj:
        return call(op);
      case PickleOp::kBuild:
        return build();
      case PickleOp::kBinPersid:
        return persistent_id();
      default:
        reader_.refuse();
    }
  }

  // Text.
  void text(std::uint64_t length, ValueKind kind) {
    if (length > limits_.max_string_bytes) {
      fail(ErrorCode::kLimitSize, cat("a ", kind_name(kind), " of ", length, " bytes; at most ",
                                      limits_.max_string_bytes, " are read"));
    }
    const std::string_view content = reader_.bytes(length);
    if (kind == ValueKind::kBytes) return push_new(Value::bytes(std::string(content)));
    if (kind == ValueKind::kByteArray) return push_new(Value::byte_array(std::string(content)));
    if (!is_python_utf8(content))
      fail(ErrorCode::kUtf8, cat("the str ", quote(content), " is not UTF-8"));
    push_new(Value::string(std::string(content)));
  }

  void python2_text(std::uint64_t length) {
    if (length > limits_.max_string_bytes) {
      fail(ErrorCode::kLimitSize,
           cat("a str of ", length, " bytes; at most ", limits_.max_string_bytes, " are read"));
    }
    std::string content(reader_.bytes(length));
    push_new(is_ascii(content) ? Value::string(std::move(content))
                               : Value::bytes(std::move(content)));
  }

  // Containers.
  // Replaces the last values of the stack with one tuple of them.
  void tuple(std::size_t size) {
    need(size);
    Value result = Node::make_tuple(stack_.last(size));
    stack_.drop_to(stack_.size() - size);
    push_new(std::move(result));
  }

  // Puts the last values of the stack into the container below them.
  template <typename Fill>
  void fill(std::size_t item_count, const Fill& fill) {
    need(item_count + 1);
    located([&] { fill(stack_.top(item_count), stack_.last(item_count)); });
    stack_.drop_to(stack_.size() - item_count);
    check_top();
  }

  template <typename Fill>
  void fill_since_mark(const Fill& fill) {
    need_mark();
    Value* const container = stack_.below_mark();
    if (container == nullptr) fail(ErrorCode::kStack, "there is no container below the MARK");
    located([&] { fill(*container, stack_.since_mark()); });
    stack_.drop_mark();
    check_top();
  }

  // Memo.
  void put(std::uint64_t slot) {
    need(1);
    ++put_count_;
    if (!cycles_.empty()) {
      const auto number = cycles_.incomplete(slot, reader_.opcode_offset());
      if (number) stack_.top() = with_cycle_number(std::move(stack_.top()), *number);
    }
    memo_.put(slot, stack_.top());
  }

  void get(std::uint64_t slot) {
    if (!cycles_.empty()) {
      if (const auto number = cycles_.incomplete(slot, reader_.opcode_offset()))
        return stack_.push(make_back_reference(*number));
    }
    // The scan has seen each slot put before it is fetched; a file may have changed since.
    const Value* const value = memo_.get(slot);
    if (value == nullptr) fail(ErrorCode::kMemo, cat("memo slot ", slot, " is not defined"));
    Node::hold(*value);
    stack_.push(*value);
  }

  // Names and calls.
  void global(std::string_view module, std::string_view name) {
    global_name_.assign(module).append("\n").append(name);
    const auto known = globals_.find(global_name_);
    if (known != globals_.end()) return stack_.push(known->second);
    if (!is_global_name(module) || !is_global_name(name)) {
      fail(ErrorCode::kGlobal,
           cat("module ", quote(module), " and name ", quote(name), " are not Python names"));
    }
    const std::int32_t tag = located([&] { return host_.global(module, name); });
    Value value = Value::global(std::string(module), std::string(name), tag);
    globals_.emplace(global_name_, value);
    push_new(std::move(value));
  }

  void stack_global() {
    need(2);
    const Value name = stack_.pop();
    const Value module = stack_.pop();
    if (name.as_string() == nullptr || module.as_string() == nullptr) {
      fail(ErrorCode::kGlobal, cat("names a global by a ", kind_name(module.kind()), " and a ",
                                   kind_name(name.kind()), ", expected two str"));
    }
    global(*module.as_string(), *name.as_string());
  }

  void call(PickleOp op) {
    need(2);
    Value args = stack_.pop();
    const Value callable = stack_.pop();
    if (args.kind() != ValueKind::kTuple) {
      fail(ErrorCode::kReduce,
           cat("the arguments are a ", kind_name(args.kind()), ", expected a tuple"));
    }
    if (callable.kind() != ValueKind::kGlobal && callable.kind() != ValueKind::kObject &&
        (callable.kind() != ValueKind::kOpaque || back_reference(callable))) {
      fail(ErrorCode::kReduce, cat("a ", kind_name(callable.kind()), " cannot be called"));
    }
    Node::hold(callable);
    Node::hold(args);
    push_new(located([&] {
      return op == PickleOp::kReduce ? host_.reduce(callable, std::move(args))
                                     : host_.new_object(callable, std::move(args));
    }));
  }

  void build() {
    need(2);
    Value state = stack_.pop();
    Value& object = stack_.top();
    bool is_shared = false;
    if (object.kind() == ValueKind::kObject) {
      located([&] { check_open(object); });
      is_shared = Node::node(object)->references > 1;
    } else if (object.kind() == ValueKind::kOpaque && !back_reference(object)) {
      is_shared = Node::in_memo(object);
    } else {
      fail(ErrorCode::kBuild,
           cat("sets the state of a ", kind_name(object.kind()), ", expected an object"));
    }
    Node::hold(state);
    Value result = located([&] {
      return host_.build(is_shared ? object : std::move(object), std::move(state), is_shared);
    });
    if (!is_shared) {
      object = std::move(result);
    } else if (!Node::is_same(result, object)) {
      fail(ErrorCode::kBuild, "replaces an object that the stream refers to again");
    }
    check_top();
  }

  void persistent_id() {
    need(1);
    Value id = stack_.pop();
    Node::hold(id);
    push_new(located([&] { return host_.persistent_id(std::move(id)); }));
  }

  // Checks.
  void push_new(Value value) {
    stack_.push(std::move(value));
    check_top();
  }
  // Checks the limits after the top of the stack has grown.
  void check_top() {
    if (stack_.top().depth() > limits_.max_depth) throw_too_deep();
    check_value_count();
  }
  void check_value_count() const {
    const std::int64_t live =
        live_value_count - live_before_ + static_cast<std::int64_t>(stack_.size());
    if (live > 0 && static_cast<std::uint64_t>(live) > limits_.max_nodes) throw_too_many();
  }
  void need(std::size_t count) const {
    if (stack_.reachable() < count) throw_underflow(count);
  }
  void need_mark() const {
    if (stack_.mark_count() == 0) fail(ErrorCode::kStack, "there is no MARK on the stack");
  }
  [[noreturn]] void throw_underflow(std::size_t count) const {
    const std::string_view where =
        stack_.mark_count() == 0 ? " on the stack" : " above the last MARK";
    fail(ErrorCode::kStack, cat("takes ", count, count == 1 ? " value" : " values", ", but ",
                                stack_.reachable(), " stand", where));
  }

  [[noreturn]] void throw_too_deep() const {
    fail(ErrorCode::kLimitDepth,
         cat("values are nested more than ", limits_.max_depth, " levels deep"));
  }

  [[noreturn]] void throw_too_many() const {
    fail(ErrorCode::kLimitNodes, cat("more than ", limits_.max_nodes, " values are alive"));
  }

  [[noreturn]] void fail(ErrorCode code, std::string_view symptom) const {
    reader_.fail(code, symptom);
  }
  struct NameHash {
    std::size_t operator()(std::string_view name) const noexcept { return KeyIndex::hash(name); }
  };

  PickleReader reader_;
  PickleHost& host_;
  const PickleLimits limits_;
  PickleStack stack_;
  PickleMemo memo_;
  PickleCycles cycles_;
  std::uint64_t put_count_ = 0;
  std::unordered_map<std::string, Value, NameHash> globals_;  // by "module\nname"
  std::string global_name_;                                   // reused for look-ups
  std::int64_t live_before_;
};

// Reads the stream again, after the first pass met a container that contains itself.
Value read_cyclic(const ByteSource& source, std::uint64_t offset, PickleHost& host,
                  const PickleLimits& limits, bool whole, const Error& error) {
  if (!host.restart()) throw error;
  PickleScan scan = scan_pickle(source, offset, whole);
  PickleCycles cycles(source, offset, scan.fetched, limits.max_nodes);
  if (cycles.empty()) throw error;
  return PickleMachine(source, offset, host, limits, std::move(scan), std::move(cycles)).run();
}

Value read(const ByteSource& source, std::uint64_t offset, PickleHost& host,
           const PickleLimits& limits, PickleScan scan, bool whole) {
  std::optional<Error> cycle;
  try {
    return PickleMachine(source, offset, host, limits, std::move(scan)).run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCycle) throw;
    cycle = error;
  }
  return read_cyclic(source, offset, host, limits, whole, *cycle);
}

}  // namespace

Value read_pickle(const ByteSource& source, PickleHost& host, const PickleLimits& limits) {
  return read(source, 0, host, limits, scan_pickle(source, 0, true), true);
}

Value read_pickle_prefix(const ByteSource& source, std::uint64_t& offset, PickleHost& host,
                         const PickleLimits& limits) {
  PickleScan scan = scan_pickle(source, offset, false);
  const std::uint64_t end = scan.end_offset;
  Value result = read(source, offset, host, limits, std::move(scan), false);
  offset = end;
  return result;
}

Value PickleHost::reduce(const Value& callable, Value args) {
  return make_object(callable, std::move(args), false);
}

Value PickleHost::new_object(const Value& cls, Value args) {
  return make_object(cls, std::move(args), true);
}

Value PickleHost::build(Value object, Value state, bool /*shared*/) {
  build_object(object, std::move(state));
  return object;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): overriding hosts take ownership.
Value PickleHost::persistent_id(Value id) {
  const std::span<const Value> items = id.items();
  const std::string* const kind = items.empty() ? nullptr : items[0].as_string();
  throw Error(ErrorCode::kPersid, "a persistent id", kind == nullptr ? "" : cat(" ", quote(*kind)),
              " has no meaning here");
}

}  // namespace fsdp::formats
