// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/output_names.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/checks/globals.h"

namespace fsdp::formats {

void check_output_names(const std::filesystem::path& output, const std::string& shown,
                        const std::set<std::string>& allowed,
                        const std::function<bool()>& cancelled) {
  // The scan of a missing output would find nothing.
  if (!std::filesystem::exists(output))
    throw Error(ErrorCode::kNotFound, escape(shown) + ": cannot be read back");
  const bool is_folder = std::filesystem::is_directory(output);
  // Bytes that an edit left behind in a shared file are never loaded, and may be compressed.
  const GlobalScan scan = scan_globals(
      output,
      {.allowed = allowed, .cancelled = cancelled, .storages = false, .unread_rest = false});
  const auto place = [&](const std::string& file, const std::string& where) {
    std::string text = escape(shown);
    if (is_folder) text += ": " + escape(file);
    if (!where.empty()) text += ": " + quote(where, 200);
    return text;
  };
  for (const GlobalUse& use : scan.globals) {
    if (use.status != GlobalUse::Status::kUnknown) continue;
    const std::string name = use.module + "." + use.name;
    throw Error(ErrorCode::kGlobal,
                cat(place(use.file, use.where), ": would refer to ", quote(name),
                    ", which is not known to be plain data; nothing was written"),
                {Remedy::kAllowGlobal, name});
  }
  if (scan.findings.empty()) return;
  const Finding& finding = scan.findings.front();
  throw Error(
      finding.code,
      cat(place(finding.file, finding.key),
          ": the names in its pickles cannot be read, so nothing was written: ", finding.message));
}

}  // namespace fsdp::formats
