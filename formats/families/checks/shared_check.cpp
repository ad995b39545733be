// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/shared_check.h"

#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/no_answer.h"
#include "formats/bytes/files/shared_files.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {

Findings check_shared_files(const std::filesystem::path& folder) {
  Findings findings;
  const auto directory = folder_at(folder);
  const std::string record = escape((folder / kSharedName).native());
  try {
    const auto file = directory->open_member_if_present(std::string(kSharedName));
    if (!file) return findings;
    for (const SharedFile& then : read_shared(*file)) {
      const auto member = directory->open_member_if_present(then.name);
      if (!member) continue;
      const SharedFile now = shared_file(then.name, *member);
      if (!is_still_shared(then, now)) continue;
      if (now.modified_ns == then.modified_ns && now.bytes == then.bytes) continue;
      findings.push_back({.code = ErrorCode::kSharedChanged,
                          .message = cat("was changed after it was linked",
                                         now.bytes == then.bytes
                                             ? std::string()
                                             : cat(" bytes now, ", now.bytes, " then)", then.bytes),
                                         ": it now holds the data of the folder it came from"),
                          .file = then.name});
    }
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    Finding finding = finding_from(error, record);
    finding.code = ErrorCode::kSeal;
    finding.file = kSharedName;
    finding.message = "the record of shared files cannot be relied on: " + finding.message;
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace fsdp::formats
