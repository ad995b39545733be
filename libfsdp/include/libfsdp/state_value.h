// SPDX-License-Identifier: Apache-2.0
// State dicts: nested, ordered, of tensors and plain values.  They hold the content of Python's
// dicts, lists, tuples and scalars as values of a closed set of types.
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

#include "libfsdp/shard_layout.h"

namespace fsdp {

class StateValue;

// A tensor of which every rank holds some rows, or some rows of a block (shard_layout.h).
struct ShardedTensor {
  ShardLayout layout;  // of the whole tensor over the ranks that share one copy
  int part = 0;        // the part that this rank has
  // For hybrid strategies and meshes: the index of this rank's replica, and the number of replicas.
  int replica = 0;
  int replica_count = 1;
  at::Tensor local;  // layout.shape_of(part)
  // For meshes: names the dimensions over which the tensor is cut, and all dimensions.  The same on
  // every rank: tensors with the same text are distributed alike.
  std::string over = {};
};

// Text, or the number of a parameter (optimizer states by PARAM_ID).
using StateKey = std::variant<std::string, std::int64_t>;
// Returns the key as readable text.
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

  bool empty() const noexcept { return positions_.empty(); }
  std::size_t size() const noexcept { return positions_.size(); }
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  // Do not change keys, only values.
  std::vector<Entry>& entries() noexcept { return entries_; }

  // Returns null if there is no such key.
  const StateValue* find(const StateKey& key) const noexcept;
  StateValue* find(const StateKey& key) noexcept {
    return const_cast<StateValue*>(std::as_const(*this).find(key));
  }
  // Throws: c10::Error naming the key.
  const StateValue& at(const StateKey& key) const;
  StateValue& at(const StateKey& key) {
    return const_cast<StateValue&>(std::as_const(*this).at(key));
  }
  // Adds None if there is no such key.
  StateValue& operator[](const StateKey& key);
  void set(const StateKey& key, StateValue value);
  // Returns whether there was such a key.  Takes time linear in the number of entries.
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
  // Implicit, so that a StateDict is written as a Python dict is.
  // NOLINTBEGIN(google-explicit-constructor)
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
  // NOLINTEND(google-explicit-constructor)
  StateValue(const StateValue& other);
  StateValue(StateValue&& other) noexcept;
  StateValue& operator=(const StateValue& other);
  StateValue& operator=(StateValue&& other) noexcept;
  ~StateValue();

  bool is_none() const noexcept;
  // Each is null if the value is of another kind.  An integer is not a double and not a bool.
  const bool* as_bool() const noexcept { return get<bool>(); }
  const std::int64_t* as_int() const noexcept { return get<std::int64_t>(); }
  const double* as_double() const noexcept { return get<double>(); }
  const std::string* as_string() const noexcept { return get<std::string>(); }
  const at::Tensor* as_tensor() const noexcept { return get<at::Tensor>(); }
  const ShardedTensor* as_sharded() const noexcept { return get<ShardedTensor>(); }
  const StateList* as_list() const noexcept { return get<StateList>(); }
  const StateTuple* as_tuple() const noexcept { return get<StateTuple>(); }
  const StateDict* as_dict() const noexcept { return get<StateDict>(); }
  at::Tensor* as_tensor() noexcept { return const_cast<at::Tensor*>(get<at::Tensor>()); }
  ShardedTensor* as_sharded() noexcept { return const_cast<ShardedTensor*>(get<ShardedTensor>()); }
  StateList* as_list() noexcept { return const_cast<StateList*>(get<StateList>()); }
  StateTuple* as_tuple() noexcept { return const_cast<StateTuple*>(get<StateTuple>()); }
  StateDict* as_dict() noexcept { return const_cast<StateDict*>(get<StateDict>()); }
  // Returns the number in an integer, a double, a bool, or a tensor of one element.
  // Throws: c10::Error for any other value.
  double number() const;
  // Returns the dict.  Throws: c10::Error if the value is not a dict.
  const StateDict& dict() const;
  StateDict& dict() { return const_cast<StateDict&>(std::as_const(*this).dict()); }

  // Returns Python's name of the kind, for messages: "dict", "float", ...
  const char* kind_name() const noexcept;

 private:
  using Content = std::variant<std::monostate, bool, std::int64_t, double, std::string, at::Tensor,
                               ShardedTensor, StateList, StateTuple, StateDict>;
  struct Storage;
  template <typename T>
  const T* get() const noexcept;

  // A pointer, because the variant holds types that contain this one.
  std::unique_ptr<Storage> content_;
};

struct StateTuple {
  StateList items;
};

// Joins the keys of the path by dots.
std::string text_of(const std::vector<StateKey>& path);

}  // namespace fsdp
