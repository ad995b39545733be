// SPDX-License-Identifier: Apache-2.0
// Reads FairScale's local_metadata_dict: the parameters in each flat one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats::fairscale {

// An original parameter within a backing one.
struct Original {
  std::string name;  // full, with the unit's path
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
};

// A parameter that FSDP keeps in equal parts, one per rank.
struct Backing {
  std::string key;  // of the state dict
  std::vector<Original> originals;
  std::int64_t numel = 0;    // of all originals together
  std::int64_t padding = 0;  // after this rank's part
  bool own = false;          // each rank has one of its own: experts
};

struct Metadata {
  std::vector<Backing> backings;
  std::vector<std::pair<std::string, std::string>> tied;  // the kept name, and the further one
  std::vector<std::string> buffers;
};

// Returns whether `value` is a local_metadata_dict.
bool is_metadata(const Value& value);

// Requires: is_metadata.  Throws: kMetaType, kOverflow.
Metadata read_metadata(const Value& value);

// The metadata in a file's object, and the weights: a mapping beside the metadata that has every
// backing parameter.
struct Shard {
  std::vector<const Value*> way;  // from the object to the mapping that holds both, inclusive
  const Value* metadata = nullptr;
  const Value* weights = nullptr;  // nullptr if the file holds only metadata
};
// Returns nothing if there are no metadata.  Lifetime: that of `root`.
std::optional<Shard> find_shard(const Value& root);
// The entries of a state dict by key.  Lifetime: that of `mapping`.
using Weights = std::unordered_map<std::string, const Value*>;
Weights weights_of(const Value& mapping);
// Returns whether the mapping has every backing parameter of `metadata`.
bool has_weights(const Value& mapping, const Metadata& metadata);

// Maps the numbers of a rank's torch.optim optimizer to the parameters that FairScale's FSDP made.
// Source: gather_full_optim_state_dict and fsdp_optim_utils.py of FairScale 0.4.13, which accept
// one parameter group, numbered in the order of the units.

// Returns whether `value` is the state dict of an optimizer: `state`, and `param_groups` with
// `params`.
bool is_optimizer(const Value& value);

// Returns why the optimizer's numbers do not map to `count` parameters one by one: several groups,
// other numbers.  Empty if they do.  Requires: is_optimizer.
std::string why_not_joined(const Value& optimizer, std::size_t count);

// Returns the state of each number below `count`; nullptr if there is none.
// Requires: why_not_joined is empty.  Lifetime: that of `optimizer`.
std::vector<const Value*> states_of(const Value& optimizer, std::size_t count);

// Returns the optimizer's number of each backing parameter: Module.parameters() follows the order
// of the state dict.
std::vector<std::size_t> numbers_in_order(const Metadata& metadata, const Value& weights);

// Returns the names of all original parameters, in the order of the metadata, as a group's
// `params`.
Value names_of(const Metadata& metadata);

}  // namespace fsdp::formats::fairscale
