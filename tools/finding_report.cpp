// SPDX-License-Identifier: Apache-2.0
#include "tools/finding_report.h"

#include <ostream>

namespace fsdp::cli {

void print_finding(const formats::Finding& finding, std::ostream& out) {
  out << formats::severity_name(finding.severity) << '[' << code_name(finding.code)
      << "]: " << formats::finding_text(finding);
  // Most messages name the place themselves.
  if (finding.bytes && finding.message.find("byte") == std::string::npos)
    out << " (bytes " << finding.bytes->begin << " to " << finding.bytes->end << ')';
  out << '\n';
}

formats::Json finding_json(const formats::Finding& finding) {
  formats::Json::Object object;
  object.emplace_back("severity", formats::severity_name(finding.severity));
  object.emplace_back("code", code_name(finding.code));
  object.emplace_back("file", finding.file.empty() ? formats::Json() : formats::Json(finding.file));
  object.emplace_back("key", finding.key.empty() ? formats::Json() : formats::Json(finding.key));
  object.emplace_back("begin",
                      finding.bytes ? formats::Json(finding.bytes->begin) : formats::Json());
  object.emplace_back("end", finding.bytes ? formats::Json(finding.bytes->end) : formats::Json());
  object.emplace_back("message", finding.message);
  return object;
}

}  // namespace fsdp::cli
