// SPDX-License-Identifier: Apache-2.0
// Copies of mappings with other entries.
#pragma once

#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Returns a mapping of the kind of `like` (OrderedDict with its attributes, defaultdict, Counter,
// dict) with these entries; a dict if `like` is not a mapping.
Value mapping_like(const Value& like, std::vector<Value::Entry> entries);

}  // namespace fsdp::formats
