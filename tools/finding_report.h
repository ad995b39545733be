// SPDX-License-Identifier: Apache-2.0
// How verbs show what is wrong with a checkpoint.
#pragma once

#include "formats/base/json.h"
#include "formats/model/finding.h"
#include "tools/common.h"

namespace fsdp::cli {

// Throws the first finding that is no answer (formats/files/no_answer.h: a file could not be read)
// as an Error with `path` in front: neither "sound" nor "damaged" can be said then.  What else was
// found is printed before, if there are `streams`.
void throw_if_unread(const formats::Findings& findings, const std::string& path,
                     const Streams* streams);

// A line: "damage[ZIP_CRC]: __1_0.distcp: 'w': symptom (bytes 10 to 20)".
// With colours, its first word is red where the checkpoint is damaged or unsafe, else yellow.
void print_finding(const formats::Finding& finding, const Streams& streams);

// {"severity", "code", "file", "key", "begin", "end", "message"}.
formats::Json finding_json(const formats::Finding& finding);

}  // namespace fsdp::cli
