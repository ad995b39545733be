// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/sha256.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/checks/seal_check.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMegatronName = "integrity.json";
constexpr std::string_view kTorchCheckpointingName = "_integrity_manifest.json";
// Enough for half a million files.
constexpr std::uint64_t kMaxListBytes = 64U << 20U;

struct ListedFile {
  std::string name;
  std::string digest;
};

void expect_text(const Json& list, std::string_view name, std::string_view expected) {
  const Json* member = list.find(name);
  if (member == nullptr) return;  // as in producers' readers: a missing member means `expected`
  if (member->as_string() != nullptr && *member->as_string() == expected) return;
  throw Error(ErrorCode::kSeal,
              cat("has the ", name, " ", quote(to_text(*member)), ", expected '", expected, "'"));
}

std::vector<ListedFile> read_list(const File& file) {
  const Json list = parse_json(read_text(file, kMaxListBytes));
  if (list.as_object() == nullptr)
    throw Error(ErrorCode::kSeal, cat("is ", json_kind(list), ", expected an object"));
  expect_text(list, "algorithm", "sha256");
  expect_text(list, "granularity", "file");
  if (const Json* version = list.find("version")) {
    if (version->as_int() == nullptr || *version->as_int() != 1)
      throw Error(ErrorCode::kSeal, cat("has the version ", to_text(*version), ", expected 1"));
  }
  const Json* files = list.find("files");
  if (files == nullptr || files->as_object() == nullptr)
    throw Error(ErrorCode::kSeal, "has no object 'files'");
  std::vector<ListedFile> listed;
  for (const auto& [name, digest] : *files->as_object()) {
    const std::string* text = digest.as_string();
    if (text == nullptr || text->size() != 64 ||
        text->find_first_not_of("0123456789abcdef") != text->npos)
      throw Error(ErrorCode::kSeal,
                  cat(quote(name), " has no SHA-256 (64 lower-case hexadecimal digits)"));
    listed.push_back({name, *text});
  }
  return listed;
}

std::string digest_of(const File& file, std::span<std::byte> buffer, const VerifyOptions& options) {
  Sha256 sha;
  read_parts(file, 0, file.size(), buffer, [&](std::uint64_t, std::span<const std::byte> bytes) {
    if (options.cancelled && options.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
    sha.add(bytes);
  });
  return sha.finish();
}

// Returns nothing if the file is as listed; otherwise the finding.
std::optional<Finding> compare(const Folder& folder, const ListedFile& listed,
                               std::span<std::byte> buffer, const VerifyOptions& options) {
  const auto finding = [&](ErrorCode code, std::string message) {
    return Finding{.code = code, .message = std::move(message), .file = listed.name};
  };
  const auto file = folder.open_member_if_present(listed.name);
  if (!file) return finding(ErrorCode::kSealMissing, "is missing, but listed with a SHA-256");
  if (options.fast) return std::nullopt;
  const std::string digest = digest_of(*file, buffer, options);
  if (digest == listed.digest) return std::nullopt;
  return finding(ErrorCode::kSealMismatch,
                 cat("SHA-256 listed ", listed.digest.substr(0, 16), "..., computed ",
                     digest.substr(0, 16), "...: its content was changed after it was listed"));
}

}  // namespace

std::optional<std::string> find_integrity_file(const fs::path& path) {
  for (const std::string_view name : {kMegatronName, kTorchCheckpointingName}) {
    if (exists_at(path / name)) return std::string(name);
  }
  return std::nullopt;
}

SealReport check_integrity_file(const fs::path& folder, const std::string& name,
                                const VerifyOptions& options) {
  SealReport report;
  report.seal = escape((folder / name).native());
  report.whole = !options.fast;
  const auto directory = folder_at(folder);
  std::vector<ListedFile> listed;
  try {
    listed = read_list(*directory->open_member(name));
  } catch (const Error& error) {
    report.findings.push_back(unreliable(error, "the list of checksums", report.seal, name));
    report.state = SealState::kUnreadable;
    return report;
  }
  VerifyReport checked;
  VerifyOptions quiet = options;
  quiet.on_progress = {};
  run_checks(
      listed.size(), quiet, checked,
      [&](std::size_t i, std::span<std::byte> buffer) {
        CheckResult result;
        if (auto finding = compare(*directory, listed[i], buffer, options))
          result.findings.push_back(std::move(*finding));
        return result;
      },
      [&](std::size_t i, const Error& error) {
        Finding finding = finding_from(error, escape((folder / listed[i].name).native()));
        finding.file = listed[i].name;
        return finding;
      },
      {},
      [&](std::size_t i) {
        if (!directory->read_by_requests() || options.fast) return false;
        const auto file = directory->open_member_if_present(listed[i].name);
        return file && file->read_ahead(0, file->size());
      });
  report.files = listed.size();
  report.findings = std::move(checked.findings);
  report.state = report.findings.empty() ? SealState::kMatches : SealState::kDiffers;
  return report;
}

}  // namespace fsdp::formats
