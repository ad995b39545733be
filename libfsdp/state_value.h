// SPDX-License-Identifier: Apache-2.0
// State dicts: nested, ordered, of tensors and plain values.  What Python keeps in dicts, lists,
// tuples and scalars, here as values of closed types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/shard_layout.h"

namespace fsdp {

class StateValue;

// A tensor of which every rank holds some rows.
struct ShardedTensor {
  ShardLayout layout;  // of the whole tensor over the ranks that share one copy
  int part = 0;        // which of them this rank is
  // Hybrid strategies: which copy of the whole this rank belongs to, and how many there are.
  int replica = 0;
  int replica_count = 1;
  at::Tensor local;  // layout.shape_of(part)
};

// Text, or the number of a parameter (optimizer states by PARAM_ID).
using StateKey = std::variant<std::string, std::int64_t>;
// The key for people.
std::string text_of(const StateKey& key);

// Entries in the order in which their keys were first set.
class StateDict {
 public:
  using Entry = std::pair<StateKey, StateValue>;

  StateDict();
  StateDict(std::initializer_list<Entry> entries);
  StateDict(const StateDict& other);
  StateDict(StateDict&& other) noexcept;
  StateDict& operator=(const StateDict& other);
  StateDict& operator=(StateDict&& other) noexcept;
  ~StateDict();

  bool empty() const noexcept;
  std::size_t size() const noexcept;
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // Keys stay as they are: change the values alone.
  std::vector<Entry>& entries() noexcept { return entries_; }

  // Null where there is no such key.
  const StateValue* find(const StateKey& key) const noexcept;
  StateValue* find(const StateKey& key) noexcept;
  // Throws: c10::Error naming the key.
  const StateValue& at(const StateKey& key) const;
  StateValue& at(const StateKey& key);
  // Adds None where there is no such key.
  StateValue& operator[](const StateKey& key);
  void set(StateKey key, StateValue value);
  // Whether there was such a key.  Takes time in the number of entries.
  bool erase(const StateKey& key);

 private:
  std::vector<Entry> entries_;
  std::unordered_map<StateKey, std::size_t> positions_;
};

using StateList = std::vector<StateValue>;
struct StateTuple;

// Copies share their tensors.
class StateValue {
 public:
  StateValue();  // None
  StateValue(bool value);
  StateValue(int value);
  StateValue(std::int64_t value);
  StateValue(double value);
  StateValue(const char* value);
  StateValue(std::string value);
  StateValue(at::Tensor value);  // defined
  StateValue(ShardedTensor value);
  StateValue(StateList value);
  StateValue(StateTuple value);
  StateValue(StateDict value);
  StateValue(const StateValue& other);
  StateValue(StateValue&& other) noexcept;
  StateValue& operator=(const StateValue& other);
  StateValue& operator=(StateValue&& other) noexcept;
  ~StateValue();

  bool is_none() const noexcept;
  // Each is null where the value is of another kind.  An integer is no double and no bool.
  const bool* as_bool() const noexcept;
  const std::int64_t* as_int() const noexcept;
  const double* as_double() const noexcept;
  const std::string* as_string() const noexcept;
  const at::Tensor* as_tensor() const noexcept;
  const ShardedTensor* as_sharded() const noexcept;
  const StateList* as_list() const noexcept;
  const StateTuple* as_tuple() const noexcept;
  const StateDict* as_dict() const noexcept;
  at::Tensor* as_tensor() noexcept;
  ShardedTensor* as_sharded() noexcept;
  StateList* as_list() noexcept;
  StateTuple* as_tuple() noexcept;
  StateDict* as_dict() noexcept;
  // The number of an integer, a double, a bool, or a tensor of one element.
  // Throws: c10::Error where it is none of them.
  double number() const;
  // The dict.  Throws: c10::Error where it is none.
  const StateDict& dict() const;
  StateDict& dict();

  // "dict", "float", ...: Python's name of the kind, for messages.
  const char* kind_name() const noexcept;

 private:
  using Content = std::variant<std::monostate, bool, std::int64_t, double, std::string, at::Tensor,
                               ShardedTensor, StateList, StateTuple, StateDict>;
  struct Storage;
  // Behind a pointer: the variant holds types that hold this one.
  std::unique_ptr<Storage> content_;
};

struct StateTuple {
  StateList items;
};

// Keys of the path joined by dots.
std::string text_of(const std::vector<StateKey>& path);

}  // namespace fsdp
