// SPDX-License-Identifier: Apache-2.0
// The content of a pickle stream as inert data: nothing in it can run.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"

namespace fsdp::formats {

class Value;
struct ValueAccess;

// A Python name that a stream refers to; it is never looked up or called.
struct GlobalName {
  std::string module;
  std::string name;
  std::string dotted() const { return module + "." + name; }
  bool operator==(const GlobalName&) const = default;
};

// Refers to a tensor in a list that the reader of the value has, such as a checkpoint's index.
struct TensorRef {
  std::size_t number = 0;     // in the list
  std::optional<DType> cast;  // the type to convert to; empty: none
  auto operator<=>(const TensorRef&) const = default;
};

// A torch.save storage: the bytes of one record, seen as elements of a type.
struct StorageRef {
  std::string key;       // record data/<key> of the archive
  DType dtype;           // kUInt8 if untyped
  bool untyped = false;  // saved as UntypedStorage: `numel` counts bytes
  std::uint64_t numel = 0;
  std::string location = "cpu";  // "cpu", "cuda:0"
  std::uint64_t archive = 0;  // the number of the key's archive in a checkpoint of several; else 0
  // If set, the storage is that whole tensor, dense and row-major, instead of a record; `key` and
  // `archive` are unused.
  std::optional<TensorRef> tensor = {};

  // Two storages with one identity hold the same bytes.
  using Identity = std::tuple<std::uint64_t, std::string, std::optional<TensorRef>>;
  Identity identity() const { return {archive, key, tensor}; }
};

// The result of a call: kept as the callable, its arguments, and the items that are added
// afterwards.
struct ObjectData;

enum class ValueKind : std::uint8_t {
  kNone = 0,
  kBool,
  kInt,
  kFloat,
  kOpaque,  // a host's own record: a tag and a number (see PickleHost)
  kString,
  kBytes,
  kByteArray,
  kBigInt,  // an integer outside 64 bits: little-endian two's complement bytes
  kList,
  kTuple,
  kDict,
  kSet,
  kFrozenSet,
  kGlobal,
  kObject,
  kStorage,
};

// "list", "dict", "global": for messages.
std::string_view kind_name(ValueKind kind) noexcept;

// The common beginning of every node; the rest is in pickle/node.h, which only the pickle code
// includes.
struct ValueNode {
  explicit ValueNode(ValueKind node_kind) : references(1), kind(node_kind) {}
  union {
    std::uint64_t references;
    ValueNode* next_dead;  // links the nodes that are being destroyed
  };
  std::uint32_t depth = 0;
  std::uint32_t tuple_size = 0;  // items that follow the node of a tuple
  ValueKind kind;
  bool sealed = false;      // held by something, so its content and depth are final
  bool unhashable = false;  // Python refuses it as a key
};

// A handle to one value, 16 bytes; copies share the value.  Values are acyclic by construction.
// Reference counts are not atomic: values that share nodes belong to one thread at a time.
// Destruction is iterative: depth cannot exhaust the stack.
class Value {
 public:
  using Entry = std::pair<Value, Value>;

  Value() noexcept = default;  // None
  Value(const Value& other) noexcept : head_(other.head_), word_(other.word_) {
    if (ValueNode* const shared = node()) ++shared->references;
  }
  Value(Value&& other) noexcept : head_(other.head_), word_(other.word_) { other.head_ = 0; }
  Value& operator=(const Value& other) noexcept {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    Value taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Value() {
    ValueNode* const held = node();
    if (held != nullptr && --held->references == 0) destroy(held);
  }
  void swap(Value& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(word_, other.word_);
  }

  static Value boolean(bool value) noexcept { return {ValueKind::kBool, value ? 1U : 0U}; }
  static Value integer(std::int64_t value) noexcept {
    return {ValueKind::kInt, static_cast<std::uint64_t>(value)};
  }
  static Value floating(double value) noexcept {
    return {ValueKind::kFloat, std::bit_cast<std::uint64_t>(value)};
  }
  static Value opaque(std::uint32_t tag, std::uint64_t payload) noexcept {
    return {ValueKind::kOpaque, payload, tag};
  }
  // UTF-8, lone surrogates as three bytes.
  static Value string(std::string text) { return of_text(ValueKind::kString, std::move(text)); }
  static Value bytes(std::string bytes) { return of_text(ValueKind::kBytes, std::move(bytes)); }
  static Value byte_array(std::string bytes) {
    return of_text(ValueKind::kByteArray, std::move(bytes));
  }
  // Little-endian two's complement.
  static Value big_int(std::string bytes) { return of_text(ValueKind::kBigInt, std::move(bytes)); }
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value set(std::vector<Value> items) { return of_set(ValueKind::kSet, std::move(items)); }
  static Value frozen_set(std::vector<Value> items) {
    return of_set(ValueKind::kFrozenSet, std::move(items));
  }
  static Value dict(std::vector<Entry> entries);
  static Value global(std::string module, std::string name, std::int32_t tag = -1);
  static Value object(ObjectData data);
  static Value storage(StorageRef storage);

  ValueKind kind() const noexcept { return static_cast<ValueKind>(head_ & 0xFFU); }
  bool is_none() const noexcept { return kind() == ValueKind::kNone; }
  // Each returns nothing if the value is of another kind.
  std::optional<bool> as_bool() const noexcept {
    return kind() == ValueKind::kBool ? std::optional<bool>(word_ != 0) : std::nullopt;
  }
  // kInt only; kBool is not an integer here.
  std::optional<std::int64_t> as_int() const noexcept {
    if (kind() != ValueKind::kInt) return std::nullopt;
    return static_cast<std::int64_t>(word_);
  }
  // kFloat only.
  std::optional<double> as_float() const noexcept {
    if (kind() != ValueKind::kFloat) return std::nullopt;
    return std::bit_cast<double>(word_);
  }
  const std::string* as_string() const noexcept;  // kString only
  const std::string* as_bytes() const noexcept;   // kBytes, kByteArray, kBigInt
  const GlobalName* as_global() const noexcept;
  const ObjectData* as_object() const noexcept;
  const StorageRef* as_storage() const noexcept;
  // Returns the result of PickleHost::global; -1 if this is not a kGlobal.
  std::int32_t global_tag() const noexcept {
    return kind() == ValueKind::kGlobal ? static_cast<std::int32_t>(tag()) : -1;
  }
  std::uint32_t opaque_tag() const noexcept { return tag(); }      // Requires: kOpaque
  std::uint64_t opaque_payload() const noexcept { return word_; }  // Requires: kOpaque
  // The items of a list, tuple, set or frozen set; empty for other kinds.
  std::span<const Value> items() const noexcept;
  // The entries of a dict in insertion order; empty for other kinds.
  std::span<const Entry> entries() const noexcept;
  // Returns the value of a dict under this key, nullptr if there is none.  The first call on a
  // large sealed dict makes an index of its keys.
  const Value* find(std::string_view key) const noexcept;

  // Returns the node: two handles with one identity alias.  nullptr for the kinds held in the
  // handle and for ().
  const void* identity() const noexcept { return node(); }
  // Returns the levels of nesting: 0 without members.
  std::uint32_t depth() const noexcept { return node() == nullptr ? 0 : node()->depth; }

 private:
  friend struct ValueAccess;
  Value(ValueKind kind, std::uint64_t word, std::uint32_t tag = 0) noexcept
      : head_(static_cast<std::uint64_t>(kind) | std::uint64_t{tag} << 32U), word_(word) {}
  std::uint32_t tag() const noexcept { return static_cast<std::uint32_t>(head_ >> 32U); }
  // Returns nullptr for kinds without a node and for the empty tuple.
  ValueNode* node() const noexcept {
    if (kind() < ValueKind::kString) return nullptr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the kind decides what the word holds.
    return reinterpret_cast<ValueNode*>(static_cast<std::uintptr_t>(word_));
  }
  static Value of_text(ValueKind kind, std::string text);
  static Value of_set(ValueKind kind, std::vector<Value> items);
  static void destroy(ValueNode* node) noexcept;

  // head_ holds the kind in its lowest byte and the tag of a kGlobal or kOpaque in its upper half.
  // kInMemo marks a kOpaque that the memo of a stream also holds, since a kOpaque has no node.
  static constexpr std::uint64_t kInMemo = 0x100;
  std::uint64_t head_ = 0;
  std::uint64_t word_ = 0;  // the content of the kinds without a node, else the node's address
};

struct ObjectData {
  Value callable;  // a kGlobal, or the object a nested name was taken from
  Value args;      // a kTuple
  bool by_new =
      false;  // made by NEWOBJ (cls.__new__(*args)) rather than by REDUCE (callable(*args))
  bool built = false;  // BUILD was applied: `state` counts even if it is None
  Value state;
  std::vector<Value> list_items;         // items appended to it
  std::vector<Value::Entry> dict_items;  // entries set in it, as for an OrderedDict
};

// Returns whether `value` is an object made by calling `module.name`.
bool is_call_of(const Value& value, std::string_view module, std::string_view name);

// Returns the entries of a dict, or of an OrderedDict, defaultdict or Counter; nothing for other
// values.  Lifetime: those of `value`.
std::optional<std::span<const Value::Entry>> mapping_entries(const Value& value);

}  // namespace fsdp::formats
