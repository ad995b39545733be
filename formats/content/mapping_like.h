// SPDX-License-Identifier: Apache-2.0
// Mappings with other entries.
#pragma once

#include <vector>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// A mapping of the kind of `like` (OrderedDict with its attributes, defaultdict, Counter, dict)
// with these entries; a dict where `like` is no mapping.
Value mapping_like(const Value& like, std::vector<Value::Entry> entries);

}  // namespace fsdp::formats
