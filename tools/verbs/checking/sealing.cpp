// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/sealing.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/checks/newer_data.h"
#include "formats/families/checks/seal_check.h"
#include "tools/base/reading.h"
#include "tools/text/value_text.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::PublishedState;
using formats::SealReport;
using formats::SealState;

// The digits of a commit in a summary.
constexpr std::size_t kShownDigits = 12;

void take(formats::Findings from, formats::Findings& findings) {
  findings.insert(findings.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
}

const char* seal_state_name(SealState state) {
  if (state == SealState::kMatches) return "matches";
  return state == SealState::kDiffers ? "differs" : "unreadable";
}

struct StateWords {
  PublishedState state;
  const char* words;
};

const char* algorithm_name(formats::DigestKind kind) {
  return kind == formats::DigestKind::kSha256 ? "sha256" : "git-sha1";
}

bool proves(const SealReport& report) {
  return report.state == SealState::kMatches && report.whole;
}

// Returns whether a list beside the checkpoint matched in every byte.
bool proves_list(const Sealing& sealing) {
  return proves(sealing.seal) || proves(sealing.integrity);
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
  return proves_list(sealing) || sealing.published.proves();
}

std::string sealing_text(const Sealing& sealing) {
  const std::string names = matching_names(sealing);
  std::string text;
  if (!names.empty())
    text = (proves_list(sealing) ? ", matches " : ", sizes and small files match ") + names;
  const formats::PublishedReport& published = sealing.published;
  if (published.matches()) {
    text += cat(published.whole ? ", matches " : ", sizes and small files match ", published.url,
                " at ", published.commit.substr(0, kShownDigits));
  }
  return text;
}

formats::Json sealing_json(const SealReport& report) {
  if (report.state == SealState::kNone) return {};
  return formats::Json::Object{{"file", report.seal},
                               {"state", seal_state_name(report.state)},
                               {"files", report.files},
                               {"whole", report.whole}};
}

formats::Json published_json(const formats::PublishedReport& report) {
  formats::Json::Object object{{"url", report.url},
                               {"revision", report.revision},
                               {"commit", report.commit},
                               {"whole", report.whole}};
  constexpr std::array<StateWords, 6> kMembers = {{{PublishedState::kSame, "same"},
                                                   {PublishedState::kSameSize, "same_size"},
                                                   {PublishedState::kDiffers, "differing"},
                                                   {PublishedState::kMissing, "missing"},
                                                   {PublishedState::kExtra, "extra"},
                                                   {PublishedState::kUnchecked, "unchecked"}}};
  for (const auto& [state, name] : kMembers) object.emplace_back(name, report.count(state));
  const auto bytes = [](const std::optional<std::uint64_t>& count) {
    return count ? formats::Json(*count) : formats::Json();
  };
  formats::Json::Array files;
  for (const formats::ComparedFile& file : report.files) {
    const bool published = file.expected_bytes.has_value();
    files.push_back(formats::Json::Object{
        {"name", file.name},
        {"state", formats::state_name(file.state)},
        {"algorithm", published ? formats::Json(algorithm_name(file.kind)) : formats::Json()},
        {"expected", text_or_null(file.expected)},
        {"found", text_or_null(file.found)},
        {"expected_bytes", bytes(file.expected_bytes)},
        {"found_bytes", bytes(file.found_bytes)},
        {"reason", text_or_null(file.reason)}});
  }
  object.emplace_back("files", std::move(files));
  return object;
}

std::vector<std::string> published_lines(const formats::PublishedReport& report,
                                         std::size_t limit) {
  constexpr std::array<StateWords, 6> kCounts = {{{PublishedState::kSame, " the same"},
                                                  {PublishedState::kSameSize, " of the same size"},
                                                  {PublishedState::kDiffers, " different"},
                                                  {PublishedState::kMissing, " not here"},
                                                  {PublishedState::kExtra, " not on the hub"},
                                                  {PublishedState::kUnchecked, " not compared"}}};
  constexpr std::array<StateWords, 2> kNamed = {
      {{PublishedState::kSame, "the same: "}, {PublishedState::kSameSize, "of the same size: "}}};
  std::string counts = cat(report.url, ": ", formats::escape(report.revision), " is commit ",
                           report.commit, "; ", counted(report.files.size(), "file"));
  const char* before = ": ";
  for (const auto& [state, words] : kCounts) {
    const std::uint64_t count = report.count(state);
    if (count == 0) continue;
    counts += cat(before, formats::group_digits(count), words);
    before = ", ";
  }
  std::vector<std::string> lines = {std::move(counts)};
  for (const auto& [state, words] : kNamed) {
    formats::SomeNames names(limit);
    for (const formats::ComparedFile& file : report.files) {
      if (file.state == state) names.add(formats::escape(file.name));
    }
    if (names.count() != 0) lines.push_back(words + names.text());
  }
  return lines;
}

}  // namespace fsdp::cli
