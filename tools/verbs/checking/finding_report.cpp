// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/finding_report.h"

#include <algorithm>
#include <ostream>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "tools/base/remedy.h"
#include "tools/text/colour.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"

namespace fsdp::cli {

void print_finding(const formats::Finding& finding, const Streams& streams) {
  const bool bad = finding.severity < formats::Finding::Severity::kUnknown;
  const std::string word =
      formats::cat(formats::severity_name(finding.severity), '[', code_name(finding.code), ']');
  std::string text =
      formats::cat(coloured(word, bad ? Colour::kRed : Colour::kYellow, streams.color), ": ",
                   formats::place_text(finding), message_of(finding));
  // Most messages already name the place.
  if (finding.bytes && finding.message.find("byte") == std::string::npos)
    text += formats::cat(" (bytes ", finding.bytes->begin, " to ", finding.bytes->end, ')');
  streams.out << wrapped(text, streams.columns) << '\n';
}

void throw_if_unread(const formats::Findings& findings, const std::string& path,
                     const Streams* streams) {
  const auto unread = [](const formats::Finding& finding) { return is_no_answer(finding.code); };
  const auto first = std::find_if(findings.begin(), findings.end(), unread);
  if (first == findings.end()) return;
  const auto others = std::count_if(first + 1, findings.end(), unread);
  if (streams != nullptr) {
    for (const formats::Finding& finding : findings) {
      if (!unread(finding)) print_finding(finding, *streams);
    }
  }
  std::string message = path + ": " + formats::finding_text(*first);
  if (others != 0) message += formats::cat("; and ", others, " more could not be read");
  throw Error(first->code, message, first->hint);
}

formats::Json::Array findings_json(const formats::Findings& findings) {
  formats::Json::Array all;
  for (const formats::Finding& finding : findings) {
    all.push_back(formats::Json::Object{
        {"severity", formats::severity_name(finding.severity)},
        {"code", code_name(finding.code)},
        {"file", text_or_null(finding.file)},
        {"key", text_or_null(finding.key)},
        {"begin", finding.bytes ? formats::Json(finding.bytes->begin) : formats::Json()},
        {"end", finding.bytes ? formats::Json(finding.bytes->end) : formats::Json()},
        {"message", message_of(finding)}});
  }
  return all;
}

}  // namespace fsdp::cli
