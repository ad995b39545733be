// SPDX-License-Identifier: Apache-2.0
// Compares two values of checkpoints.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

struct ValueComparison {
  bool same = true;
  std::string where;  // path to the first difference: "['betas'][1]"; empty: the value itself
  // Storages at the same places, whose bytes the caller must compare; devices are ignored.
  std::vector<std::pair<StorageRef, StorageRef>> storages;
};

// Compares two values.  Types count: 1, 1.0 and True are three values; a tuple differs from a list.
// Mappings (dict, OrderedDict and similar) are equal if they hold the same values under the same
// keys, in any order, and so are sets.  Floats are equal if their bits are; NaN equals NaN.
ValueComparison compare_values(const Value& a, const Value& b);

}  // namespace fsdp::formats
