// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/sealing.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "formats/bytes/base/error.h"
#include "formats/families/checks/newer_data.h"
#include "formats/families/checks/seal_check.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::SealReport;
using formats::SealState;

void take(formats::Findings from, formats::Findings& findings) {
  findings.insert(findings.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
}

const char* state_name(SealState state) {
  if (state == SealState::kMatches) return "matches";
  return state == SealState::kDiffers ? "differs" : "unreadable";
}

bool proves(const SealReport& report) {
  return report.state == SealState::kMatches && report.whole;
}

// Returns the names of the lists that match: "its seal and integrity.json".
std::string matching_names(const Sealing& sealing) {
  std::string names = sealing.seal.state == SealState::kMatches ? "its seal" : "";
  if (sealing.integrity.state == SealState::kMatches) {
    names += names.empty() ? "" : " and ";
    names += fs::path(sealing.integrity.seal).filename();
  }
  return names;
}

}  // namespace

Sealing check_sealing(const std::string& path, const formats::VerifyOptions& options,
                      bool ignore_seal, formats::Findings& findings) {
  Sealing sealing;
  const formats::SealPlace own = formats::seal_place(path);
  if (!ignore_seal) {
    if (const auto place = formats::find_seal(path)) {
      sealing.seal = formats::check_seal(*place, options);
      take(sealing.seal.findings, findings);
    }
  }
  if (own.single) return sealing;
  if (const auto name = formats::find_integrity_file(own.folder)) {
    sealing.integrity = formats::check_integrity_file(own.folder, *name, options);
    take(sealing.integrity.findings, findings);
  }
  // Checksums of everything match, and are better evidence than times.
  if (matches_whole(sealing)) return sealing;
  take(formats::check_shared_files(own.folder), findings);
  const bool damaged = std::any_of(findings.begin(), findings.end(), [](const auto& finding) {
    return finding.severity == formats::Finding::Severity::kDamage;
  });
  // Damage to the data has also changed its times.
  if (sealing.seal.state == SealState::kNone && !damaged)
    take(formats::newer_data(own.folder), findings);
  return sealing;
}

bool is_sealed(const Sealing& sealing) {
  return sealing.seal.state != SealState::kNone || sealing.integrity.state != SealState::kNone;
}

bool matches_whole(const Sealing& sealing) {
  return proves(sealing.seal) || proves(sealing.integrity);
}

std::string sealing_text(const Sealing& sealing) {
  const std::string names = matching_names(sealing);
  if (names.empty()) return {};
  return (matches_whole(sealing) ? ", matches " : ", sizes and small files match ") + names;
}

formats::Json sealing_json(const SealReport& report) {
  if (report.state == SealState::kNone) return {};
  return formats::Json::Object{{"file", report.seal},
                               {"state", state_name(report.state)},
                               {"files", report.files},
                               {"whole", report.whole}};
}

}  // namespace fsdp::cli
