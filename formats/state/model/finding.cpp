// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/finding.h"

#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

Finding warning(ErrorCode code, std::string message, std::string file, std::string key) {
  return {.code = code,
          .message = std::move(message),
          .file = std::move(file),
          .key = std::move(key),
          .severity = Finding::Severity::kWarning};
}

std::string_view severity_name(Finding::Severity severity) noexcept {
  switch (severity) {
    case Finding::Severity::kDamage:
      return "damage";
    case Finding::Severity::kUnsafe:
      return "unsafe";
    case Finding::Severity::kUnknown:
      return "unknown";
    case Finding::Severity::kWarning:
      return "warning";
  }
  return "damage";
}

Finding::Severity severity_of(ErrorCode code) noexcept {
  return code == ErrorCode::kGlobal ? Finding::Severity::kUnsafe : Finding::Severity::kDamage;
}

std::string place_text(const Finding& finding) {
  std::string out;
  if (!finding.file.empty()) out += escape(finding.file) + ": ";
  if (!finding.key.empty()) out += quote(finding.key, 200) + ": ";
  return out;
}

std::string finding_text(const Finding& finding) {
  return place_text(finding) + finding.message;
}

void throw_if_damaged(const Findings& findings, const std::string& where) {
  const Finding* first = nullptr;
  std::size_t others = 0;
  for (const Finding& finding : findings) {
    if (finding.severity > Finding::Severity::kUnsafe) continue;
    if (first == nullptr) {
      first = &finding;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return;
  std::string message = where + ": " + finding_text(*first);
  if (others != 0) message += cat("; and ", others, " more: run fsdp-ckpt verify");
  throw Error(first->code, message, first->hint);
}

}  // namespace fsdp::formats
