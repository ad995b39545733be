// SPDX-License-Identifier: Apache-2.0
// Prints findings, for verbs.
#pragma once

#include "formats/bytes/base/json.h"
#include "formats/state/model/finding.h"
#include "tools/base/common.h"

namespace fsdp::cli {

// If a finding says that a file could not be read (is_no_answer), throws the
// first such finding as an Error with `path` in front: it is then unknown whether the checkpoint is
// sound.  Prints the other findings before, unless `streams` is null.
void throw_if_unread(const formats::Findings& findings, const std::string& path,
                     const Streams* streams);

// Prints a line: "damage[ZIP_CRC]: __1_0.distcp: 'w': symptom (bytes 10 to 20)".
// With colours, its first word is red if the checkpoint is damaged or unsafe, else yellow.
void print_finding(const formats::Finding& finding, const Streams& streams);

// Returns [{"severity", "code", "file", "key", "begin", "end", "message"}].
formats::Json::Array findings_json(const formats::Findings& findings);

}  // namespace fsdp::cli
