// SPDX-License-Identifier: Apache-2.0
// Whether two values of checkpoints hold the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/pickle/value.h"

namespace fsdp::formats {

struct ValueComparison {
  bool same = true;
  std::string where;  // the way to the first difference: "['betas'][1]"; empty: the value itself
  // Storages at the same places, whose bytes are still to be compared; devices do not count.
  std::vector<std::pair<StorageRef, StorageRef>> storages;
};

// Types count: 1, 1.0 and True are three values, a tuple is no list.  Mappings (dict, OrderedDict
// and their kin) are the same where they hold the same under the same keys, in any order; so are
// sets. Floats are the same with the same bits, and NaN with NaN.
ValueComparison compare_values(const Value& a, const Value& b);

}  // namespace fsdp::formats
