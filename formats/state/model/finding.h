// SPDX-License-Identifier: Apache-2.0
// A fault found in a checkpoint: a value, not an exception.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Finding {
  // From the worst to the mildest.
  enum class Severity {
    kDamage,   // bytes or structure are wrong, or gone
    kUnsafe,   // a name that may run code when Python loads it: one outside the exact lists
    kUnknown,  // sound as far as it can be told, but cannot be read into tensors and values
    kWarning,
  };
  ErrorCode code = ErrorCode::kIo;
  std::string message = {};             // the symptom, with expected and found
  std::string file = {};                // name within the checkpoint, empty if it concerns none
  std::string key = {};                 // fully qualified name, empty if it concerns none
  std::optional<ByteRange> bytes = {};  // of `file`
  Severity severity = Severity::kDamage;
  Hint hint = {};
};

using Findings = std::vector<Finding>;

// Returns a finding of the mildest severity.
Finding warning(ErrorCode code, std::string message, std::string file = {}, std::string key = {});

// "damage", "unsafe", "unknown", "warning".
std::string_view severity_name(Finding::Severity severity) noexcept;

// Returns the severity of an error with this code from reading a checkpoint: kGlobal is unsafe, the
// rest damage.  kUnknown is only set by the code that finds it.
Finding::Severity severity_of(ErrorCode code) noexcept;

// "file: 'key': symptom", in the form of error messages.
std::string finding_text(const Finding& finding);
// Returns the beginning of that, "file: 'key': "; empty if the finding concerns neither.
std::string place_text(const Finding& finding);

// Throws the first finding that is damage or unsafe as an Error with `where` in front and the
// number of further ones after it.  Unknown ones are left to the code that reads them.
void throw_if_damaged(const Findings& findings, const std::string& where);

}  // namespace fsdp::formats
