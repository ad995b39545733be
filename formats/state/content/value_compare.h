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
  std::string where;  // the way to the first difference: "['betas'][1]"; empty: the value itself
  // Storages at the same places, whose bytes are still to be compared; devices are ignored.
  std::vector<std::pair<StorageRef, StorageRef>> storages;
};

// Types count: 1, 1.0 and True are three values; a tuple differs from a list.  Mappings (dict,
// OrderedDict and similar) are equal if they hold the same values under the same keys, in any
// order; sets are compared in the same way.  Floats are equal if their bits are, and NaN equals
// NaN.
ValueComparison compare_values(const Value& a, const Value& b);

}  // namespace fsdp::formats
