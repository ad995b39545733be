// SPDX-License-Identifier: Apache-2.0
// What a checkpoint turned out to have wrong: a value, not an exception.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/error.h"

namespace fsdp::formats {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Finding {
  enum class Severity { kDamage, kWarning };
  ErrorCode code = ErrorCode::kIo;
  std::string message;             // the symptom, with expected and found
  std::string file;                // name within the checkpoint, empty where it concerns none
  std::string key;                 // fully qualified name, empty where it concerns none
  std::optional<ByteRange> bytes;  // of `file`
  Severity severity = Severity::kDamage;
};

using Findings = std::vector<Finding>;

// "file: 'key': symptom", as errors read.
std::string finding_text(const Finding& finding);

// Throws the first finding that is damage as an Error with `where` in front and the number of
// further ones behind.
void throw_if_damaged(const Findings& findings, const std::string& where);

}  // namespace fsdp::formats
