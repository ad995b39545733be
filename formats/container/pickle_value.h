// SPDX-License-Identifier: Apache-2.0
// What a pickle stream describes, as inert data: nothing in it can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/dtype.h"

namespace fsdp::formats {

class Value;
struct ValueNode;

// A Python name that a stream refers to; it is never looked up or called.
struct GlobalName {
  std::string module;
  std::string name;
  std::string dotted() const { return module + "." + name; }
  bool operator==(const GlobalName&) const = default;
};

// A torch.save storage: the bytes of one record, seen as elements of a type.
struct StorageRef {
  std::string key;        // record data/<key> of the archive
  DType dtype;            // kUInt8 where untyped
  bool untyped = false;   // saved as UntypedStorage: `numel` counts bytes
  std::uint64_t numel = 0;
  std::string location;   // "cpu", "cuda:0"
  std::uint64_t archive = 0;  // which archive of a whole the key is in; 0 where there is but one
};

// The result of calling something: kept as what would be called with what, and what is then put into it.
struct ObjectData;

enum class ValueKind : std::uint8_t {
  kNone, kBool, kInt, kFloat,
  kOpaque,   // a host's own record: a tag and a number (see PickleHost)
  kString, kBytes, kByteArray,
  kBigInt,   // an integer outside 64 bits: little-endian two's complement bytes
  kList, kTuple, kDict, kSet, kFrozenSet,
  kGlobal, kObject, kStorage,
};

// A handle to one value, 16 bytes; copies share the value.  Reference counts are not atomic: values that share
// nodes belong to one thread at a time.  Destruction is iterative: depth cannot exhaust the stack.
// Values are acyclic by construction.
class Value {
 public:
  using Entry = std::pair<Value, Value>;

  Value() noexcept = default;  // None
  Value(const Value& other) noexcept;
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other) noexcept;
  Value& operator=(Value&& other) noexcept;
  ~Value();

  static Value boolean(bool value) noexcept;
  static Value integer(std::int64_t value) noexcept;
  static Value floating(double value) noexcept;
  static Value opaque(std::uint32_t tag, std::uint64_t payload) noexcept;
  static Value string(std::string text);              // UTF-8, lone surrogates as three bytes
  static Value bytes(std::string bytes);
  static Value byte_array(std::string bytes);
  static Value big_int(std::string twos_complement);  // little-endian
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value set(std::vector<Value> items);
  static Value frozen_set(std::vector<Value> items);
  static Value dict(std::vector<Entry> entries);
  static Value global(std::string module, std::string name, std::int32_t tag = -1);
  static Value object(ObjectData data);
  static Value storage(StorageRef storage);

  ValueKind kind() const noexcept { return kind_; }
  bool is_none() const noexcept { return kind_ == ValueKind::kNone; }
  // Each gives nothing where the value is of another kind.
  std::optional<bool> as_bool() const noexcept;
  std::optional<std::int64_t> as_int() const noexcept;  // kInt only; kBool is no integer here
  std::optional<double> as_float() const noexcept;      // kFloat only
  const std::string* as_string() const noexcept;        // kString only
  const std::string* as_bytes() const noexcept;         // kBytes, kByteArray, kBigInt
  const GlobalName* as_global() const noexcept;
  const ObjectData* as_object() const noexcept;
  const StorageRef* as_storage() const noexcept;
  std::int32_t global_tag() const noexcept;             // what PickleHost::global gave; -1 if no kGlobal
  std::uint32_t opaque_tag() const noexcept;            // Requires: kOpaque
  std::uint64_t opaque_payload() const noexcept;        // Requires: kOpaque
  // The items of a list, tuple, set or frozen set; empty for other kinds.
  std::span<const Value> items() const noexcept;
  // The entries of a dict in insertion order; empty for other kinds.
  std::span<const Entry> entries() const noexcept;
  // The entry of a dict whose key is this string, nullptr where there is none.
  const Value* find(std::string_view key) const noexcept;

  // Same node or, for the kinds held in the handle, same content.  Two handles with one identity alias.
  const void* identity() const noexcept;  // nullptr for the kinds without a node
  // Levels of nesting: 0 for what holds nothing.
  std::uint32_t depth() const noexcept;

 private:
  friend class PickleMachine;
  ValueKind kind_ = ValueKind::kNone;
  std::uint32_t tag_ = 0;
  union {
    bool boolean_;
    std::int64_t integer_;
    double floating_;
    std::uint64_t payload_ = 0;
    ValueNode* node_;
  };
};

struct ObjectData {
  Value callable;                   // a kGlobal, or the object a nested name was taken from
  Value args;                       // a kTuple
  bool by_new = false;              // made by NEWOBJ (cls.__new__(*args)) rather than by REDUCE (callable(*args))
  bool built = false;               // BUILD was applied: `state` counts even where it is None
  Value state;
  std::vector<Value> list_items;          // appended to it
  std::vector<Value::Entry> dict_items;   // set in it: how an OrderedDict gets its entries
};

// Whether `value` is an object made by calling `module.name`.
bool is_call_of(const Value& value, std::string_view module, std::string_view name);

// The entries of a dict, or of an OrderedDict, defaultdict or Counter; nothing for other values.
std::optional<std::span<const Value::Entry>> mapping_entries(const Value& value);

}  // namespace fsdp::formats
