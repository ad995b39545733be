// SPDX-License-Identifier: Apache-2.0
// Shows the findings of a checkpoint in verbs.
#pragma once

#include "formats/bytes/base/json.h"
#include "formats/state/model/finding.h"
#include "tools/common.h"

namespace fsdp::cli {

// Throws the first finding that says that a file could not be read
// (formats/bytes/files/no_answer.h), as an Error with `path` in front: the checkpoint is then known
// neither as sound nor as damaged. Prints the other findings before that, if there are `streams`.
void throw_if_unread(const formats::Findings& findings, const std::string& path,
                     const Streams* streams);

// Prints a line: "damage[ZIP_CRC]: __1_0.distcp: 'w': symptom (bytes 10 to 20)".
// With colours, its first word is red if the checkpoint is damaged or unsafe, else yellow.
void print_finding(const formats::Finding& finding, const Streams& streams);

// {"severity", "code", "file", "key", "begin", "end", "message"}.
formats::Json finding_json(const formats::Finding& finding);

}  // namespace fsdp::cli
