// SPDX-License-Identifier: Apache-2.0
// Warns of keys that a person cannot read as they are.
#pragma once

#include "formats/state/model/finding.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// Appends a warning, kName, for every key that is empty or has an empty part, or that holds NUL,
// control characters, invisible characters, or bytes that are not UTF-8.
void check_names(const Index& index, Findings& findings);

}  // namespace fsdp::formats
