// SPDX-License-Identifier: Apache-2.0
// `inspect --globals`: the names in the pickles of a checkpoint.
#include <algorithm>
#include <ostream>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/families/checks/globals.h"
#include "formats/front/open.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"
#include "tools/base/selection.h"
#include "tools/text/table.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {
namespace {

using formats::GlobalScan;
using formats::GlobalUse;

const char* status_name(GlobalUse::Status status) {
  if (status == GlobalUse::Status::kKnown) return "known";
  return status == GlobalUse::Status::kAllowed ? "allowed" : "unknown";
}

void print_json(const std::string& path, const GlobalScan& scan, std::ostream& out) {
  formats::Json::Array globals;
  for (const GlobalUse& use : scan.globals) {
    globals.push_back(formats::Json::Object{{"name", use.module + "." + use.name},
                                            {"status", status_name(use.status)},
                                            {"pickles", use.pickles},
                                            {"file", use.file},
                                            {"where", text_or_null(use.where)}});
  }
  formats::Json::Array unread;
  for (const formats::Finding& finding : scan.findings) {
    unread.push_back(formats::Json::Object{{"code", code_name(finding.code)},
                                           {"file", finding.file},
                                           {"where", text_or_null(finding.key)},
                                           {"message", message_of(finding)}});
  }
  const formats::Json::Object object{
      {"schema", "fsdp-ckpt/globals/1"}, {"path", path},
      {"pickles", scan.pickles},         {"complete", scan.findings.empty()},
      {"globals", std::move(globals)},   {"unread", std::move(unread)}};
  out << formats::to_text(object, 1) << '\n';
}

void print_text(const std::string& path, const GlobalScan& scan, const Streams& streams) {
  const auto unknown = std::count_if(scan.globals.begin(), scan.globals.end(), [](const auto& use) {
    return use.status == GlobalUse::Status::kUnknown;
  });
  const std::string text = formats::cat(
      path, ": ", counted(scan.globals.size(), "name"), " in ", counted(scan.pickles, "pickle"),
      ", ", unknown == 0 ? "none" : std::to_string(unknown), " unknown");
  streams.out << wrapped(text, streams.columns) << '\n';
  if (!scan.globals.empty()) {
    streams.out << '\n';
    Table table({Column::kWhole, Column::kName, Column::kNumber, Column::kText});
    for (const GlobalUse& use : scan.globals) {
      std::string place = formats::escape(use.file);
      if (!use.where.empty()) place += ": " + formats::quote(use.where, 200);
      table.add({status_name(use.status), formats::escape(use.module + "." + use.name),
                 formats::group_digits(use.pickles), place});
    }
    table.print(streams.out, streams.columns);
  }
  for (const formats::Finding& finding : scan.findings) {
    streams.err << "fsdp-ckpt: warning[" << code_name(finding.code)
                << "]: " << formats::finding_text(finding) << '\n';
  }
}

}  // namespace

int inspect_globals(const CommonOptions& common, const Streams& streams) {
  formats::GlobalScanOptions options;
  options.allowed = common.allowed_globals;
  SelectionCheck selection(common.keys);
  bool asked = false;
  if (!common.keys.everything()) {
    options.selects = [&](const std::string& key) {
      asked = true;
      selection.see(key);
      return common.keys.selects(key);
    };
  }
  options.cancelled = [] { return formats::interrupted(); };
  const GlobalScan scan = formats::scan_globals(common.path, options);
  if (asked) {
    selection.finish(formats::escape(common.path));
  } else if (options.selects && scan.findings.empty()) {
    throw Error(ErrorCode::kUsage,
                formats::escape(common.path) +
                    ": --keys and --exclude choose items of a folder, and this path has no items");
  }
  // Without a pickle the path must at least be a checkpoint; otherwise the error says what it is.
  if (scan.pickles == 0 && scan.findings.empty())
    (void)formats::open_checkpoint(common.path, {common.allowed_globals});
  if (common.json) {
    print_json(common.path, scan, streams.out);
  } else {
    print_text(formats::escape(common.path), scan, streams);
  }
  return scan.findings.empty() ? 0 : 1;
}

}  // namespace fsdp::cli
