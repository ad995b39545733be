// SPDX-License-Identifier: Apache-2.0
// Reads FairScale's local_metadata_dict: the parameters in each flat one.
#pragma once

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

}  // namespace fsdp::formats::fairscale
