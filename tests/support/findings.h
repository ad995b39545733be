// SPDX-License-Identifier: Apache-2.0
// Findings as lines, for comparing: "HOLE 'w': chunks cover 4 of 6 ...".  Findings that are not
// damage begin with their severity: "warning ".
#pragma once

#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::test {

inline std::vector<std::string> lines(const formats::Findings& findings) {
  std::vector<std::string> all;
  for (const formats::Finding& finding : findings) {
    const bool damage = finding.severity == formats::Finding::Severity::kDamage;
    const std::string severity(formats::severity_name(finding.severity));
    all.push_back((damage ? "" : severity + " ") + std::string(code_name(finding.code)) + " " +
                  formats::finding_text(finding));
  }
  return all;
}

inline std::vector<std::string> verified(const formats::StoredCheckpoint& checkpoint,
                                         bool fast = false) {
  formats::VerifyOptions options;
  options.fast = fast;
  return lines(checkpoint.verify(options).findings);
}

}  // namespace fsdp::test
