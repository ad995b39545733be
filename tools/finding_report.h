// SPDX-License-Identifier: Apache-2.0
// How verbs show what is wrong with a checkpoint.
#pragma once

#include <iosfwd>

#include "formats/base/json.h"
#include "formats/model/finding.h"

namespace fsdp::cli {

// A line: "damage[ZIP_CRC]: __1_0.distcp: 'w': symptom (bytes 10 to 20)".
void print_finding(const formats::Finding& finding, std::ostream& out);

// {"severity", "code", "file", "key", "begin", "end", "message"}.
formats::Json finding_json(const formats::Finding& finding);

}  // namespace fsdp::cli
