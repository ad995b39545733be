// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/seal_check.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/shared_files.h"
#include "formats/bytes/outputs/place.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/families/dcp/names.h"
#include "formats/families/torch/torch.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Bytes of a file that one thread reads at a time.
constexpr std::uint64_t kPartBytes = 64U << 20U;
// A fast check reads files up to this size.
constexpr std::uint64_t kSmallBytes = 1U << 20U;

// A part of a file whose checksum is not known yet.
struct Part {
  std::size_t file;
  std::uint64_t begin;
  std::uint64_t end;
};

bool stands_for_folder(const std::string& name) {
  return name == dcp::kMetadataName || dcp::rank_of_data_file(name).has_value() ||
         name.ends_with(".safetensors.index.json") || is_torch_index_name(name);
}

fs::path parent_of(const fs::path& path) {
  if (in_store(path)) return folder_of_place(path);
  const fs::path parent = fs::absolute(path).lexically_normal().parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// A checkpoint's files, opened one after the other, and their checksums, known or computed by
// reading.
class Sums {
 public:
  Sums(const Folder& folder, std::vector<std::string> names, const VerifyOptions& options)
      : folder_(folder),
        names_(std::move(names)),
        options_(options),
        ledgers_(names_.size()),
        bytes_(names_.size()) {}

  // Learns the size of file `number`.  Throws: the errors of opening.
  std::uint64_t open(std::size_t number) {
    const auto file = folder_.open_member(names_[number]);
    return bytes_[number] = file->size();
  }

  // Plans to read the parts of the file that have no known checksum.
  void want(std::size_t number) {
    const auto file = folder_.open_member(names_[number]);
    std::uint64_t at = 0;
    const auto gap_until = [&](std::uint64_t end) {
      for (; at < end; at += std::min(kPartBytes, end - at))
        parts_.push_back({number, at, std::min(end, at + kPartBytes)});
    };
    for (const CrcLedger::Run& run : known_runs(*file, number)) {
      // If parts overlap, as in hostile metadata, the first one counts.
      if (run.begin < at || run.begin + run.bytes > bytes_[number]) continue;
      gap_until(run.begin);
      ledgers_[number].add(run.begin, run.bytes, run.crc);
      at = run.begin + run.bytes;
    }
    gap_until(bytes_[number]);
  }

  // Reads the planned parts.  Errors are findings.  Throws: kInterrupted.
  Findings read() {
    VerifyReport report;
    VerifyOptions options = options_;
    options.on_progress = {};
    run_checks(
        parts_.size(), options, report,
        [&](std::size_t i, std::span<std::byte> buffer) { return read_part(parts_[i], buffer); },
        [&](std::size_t i, const Error& error) {
          const std::string& name = names_[parts_[i].file];
          Finding finding = finding_from(error, escape((folder_.path() / name).native()));
          finding.file = name;
          return finding;
        },
        [&](std::size_t i, const CheckResult& result) {
          // A part that could not be read has a finding.
          const Part& part = parts_[i];
          if (result.findings.empty())
            ledgers_[part.file].add(part.begin, part.end - part.begin, result.crc);
        },
        [&](std::size_t i) {
          const Part& part = parts_[i];
          return folder_.read_by_requests() && folder_.open_member(names_[part.file])
                                                   ->read_ahead(part.begin, part.end - part.begin);
        });
    return std::move(report.findings);
  }

  // Returns nothing if a part of the file could not be read.
  std::optional<std::uint32_t> crc(std::size_t number) const {
    return ledgers_[number].total(bytes_[number]);
  }

  // Learns the checksums of what the other members of a team have read.  Called by all members.
  void join_known() {
    if (options_.team->alone() || options_.crcs == nullptr) return;
    Packed mine;
    for (const std::string& name : names_) {
      std::vector<CrcLedger::Run> runs;
      try {
        if (const auto file = folder_.open_member_if_present(name))
          runs = options_.crcs->runs(*file);
      } catch (const Error&) {
        // `open` will report the error.
      }
      mine.number(runs.size());
      for (const CrcLedger::Run& run : runs)
        mine.number(run.begin).number(run.bytes).number(run.crc);
    }
    std::vector<CrcLedger> joined(names_.size());
    for (const std::string& sent : options_.team->exchange("checksums of files", mine.take())) {
      Unpacked fields(sent);
      for (CrcLedger& ledger : joined) {
        for (std::uint64_t left = fields.number(); left != 0; --left) {
          const std::uint64_t begin = fields.number();
          const std::uint64_t bytes = fields.number();
          ledger.add(begin, bytes, static_cast<std::uint32_t>(fields.number()));
        }
      }
    }
    for (const CrcLedger& ledger : joined) known_.push_back(ledger.runs());
  }

 private:
  // Returns the parts of the file that were read for other checks.
  std::vector<CrcLedger::Run> known_runs(const File& file, std::size_t number) const {
    if (!known_.empty()) return known_[number];
    return options_.crcs == nullptr ? std::vector<CrcLedger::Run>() : options_.crcs->runs(file);
  }

  CheckResult read_part(const Part& part, std::span<std::byte> buffer) {
    const auto file = folder_.open_member(names_[part.file]);
    CheckResult result;
    read_parts(*file, part.begin, part.end - part.begin, buffer,
               [&](std::uint64_t, std::span<const std::byte> bytes) {
                 if (options_.cancelled && options_.cancelled())
                   throw Error(ErrorCode::kInterrupted, "interrupted");
                 result.crc = crc32(result.crc, bytes);
               });
    return result;
  }

  const Folder& folder_;
  const std::vector<std::string> names_;
  const VerifyOptions& options_;
  std::vector<CrcLedger> ledgers_;
  std::vector<std::uint64_t> bytes_;
  std::vector<Part> parts_;
  std::vector<std::vector<CrcLedger::Run>> known_;  // of each file; empty: this process is alone
};

// Returns whether the part of the seal that counts may list the file.
bool counts(const SealPlace& place, const std::string& name) {
  return place.only.empty() || name == place.only ||
         (place.only.ends_with('/') && name.starts_with(place.only));
}

// Returns every file that a seal of the place must list.
std::vector<std::string> files_at(const Folder& folder, const SealPlace& place) {
  if (place.single) return {place.only};
  // What a killed run of `seal` leaves behind.
  const std::string leftover = OutputPlace::temporary_of(std::string(kSealName));
  std::vector<std::string> names;
  for (std::string& name : folder.list_files()) {
    if (counts(place, name) && name != place.name && name != leftover)
      names.push_back(std::move(name));
  }
  return names;
}

class SealCheck {
 public:
  SealCheck(const SealPlace& place, const VerifyOptions& options)
      : place_(place), options_(options), folder_(folder_at(place.folder)) {
    report_.seal = escape((place.folder / place.name).native());
    report_.whole = !options.fast;
  }

  SealReport run() {
    if (!read()) return std::move(report_);
    compare_names();
    compare_content();
    report_.state = report_.findings.empty() ? SealState::kMatches : SealState::kDiffers;
    return std::move(report_);
  }

 private:
  void add(ErrorCode code, std::string message, std::string file) {
    report_.findings.push_back(
        {.code = code, .message = std::move(message), .file = std::move(file)});
  }

  bool read() {
    try {
      sealed_ = read_seal(*folder_->open_member(place_.name));
      if (place_.single) {
        if (sealed_.size() != 1) {
          throw Error(ErrorCode::kSeal,
                      cat("lists ", sealed_.size(), " files, expected one, ", quote(place_.only)));
        }
        // A file and its seal may be renamed together.
        sealed_[0].name = place_.only;
      }
      return true;
    } catch (const Error& error) {
      report_.findings.push_back(unreliable(error, "the seal", report_.seal, place_.name));
      report_.state = SealState::kUnreadable;
      return false;
    }
  }

  void compare_names() {
    const std::vector<std::string> present = files_at(*folder_, place_);
    std::set<std::string> listed;
    for (const SealedFile& file : sealed_) listed.insert(file.name);
    for (const std::string& name : present) {
      if (!listed.contains(name)) {
        add(ErrorCode::kSealExtra,
            "is not in the seal: it was added later, or the seal belongs to another checkpoint",
            name);
      }
    }
    const std::set<std::string> there(present.begin(), present.end());
    std::erase_if(sealed_, [&](const SealedFile& file) {
      if (!counts(place_, file.name)) return true;
      if (there.contains(file.name)) return false;
      add(ErrorCode::kSealMissing, cat("is missing; the seal lists it with ", file.bytes, " bytes"),
          file.name);
      return true;
    });
  }

  void compare_content() {
    std::vector<std::string> names;
    for (const SealedFile& file : sealed_) names.push_back(file.name);
    Sums sums(*folder_, names, options_);
    sums.join_known();
    std::vector<bool> wanted(sealed_.size(), false);
    report_.files = sealed_.size();
    for (std::size_t i = 0; i < sealed_.size(); ++i) {
      const SealedFile& file = sealed_[i];
      try {
        const std::uint64_t bytes = sums.open(i);
        if (bytes != file.bytes) {
          add(ErrorCode::kSealMismatch, cat("has ", bytes, " bytes, sealed with ", file.bytes),
              file.name);
          continue;
        }
        const bool metadata = fs::path(file.name).filename() == dcp::kMetadataName;
        wanted[i] = !options_.fast || metadata || bytes <= kSmallBytes;
        if (wanted[i]) sums.want(i);
      } catch (const Error& error) {
        Finding finding = finding_from(error, escape((folder_->path() / file.name).native()));
        finding.file = file.name;
        report_.findings.push_back(std::move(finding));
      }
    }
    for (Finding& finding : sums.read()) report_.findings.push_back(std::move(finding));
    for (std::size_t i = 0; i < sealed_.size(); ++i) {
      const auto crc = wanted[i] ? sums.crc(i) : std::nullopt;
      if (!crc || *crc == sealed_[i].crc) continue;
      add(ErrorCode::kSealMismatch,
          cat("CRC-32 of the file sealed ", hex32(sealed_[i].crc), ", computed ", hex32(*crc),
              ": the file was changed after it was sealed, or belongs to another save"),
          sealed_[i].name);
    }
  }

  const SealPlace& place_;
  const VerifyOptions& options_;
  std::shared_ptr<const Folder> folder_;
  std::vector<SealedFile> sealed_;
  SealReport report_;
};

}  // namespace

SealPlace seal_place(const fs::path& path) {
  if (is_folder(path)) {
    const bool slash = !path.has_filename() && path.has_relative_path();
    return {in_store(path) ? fs::path(url_of(path))
            : slash        ? path.parent_path()
                           : path,
            std::string(kSealName), "", false};
  }
  const fs::path folder = folder_of_place(path);
  const std::string name = path.filename();
  if (stands_for_folder(name)) return {folder, std::string(kSealName), "", false};
  return {folder, sidecar_name(name), name, true};
}

std::optional<SealPlace> find_seal(const fs::path& path) {
  const SealPlace own = seal_place(path);
  // The folder above counts if its seal covers the path.
  const fs::path above = own.single ? own.folder : parent_of(own.folder);
  const fs::path inner = own.folder / own.name;
  const fs::path outer = above / kSealName;
  if (in_store(path)) {
    // exists_at would also ask the store for folders of these names.
    const auto found = find_stored({url_of(inner), url_of(outer)});
    if (found[0]) return own;
    if (!found[1]) return std::nullopt;
  } else {
    if (exists_at(inner)) return own;
    if (!exists_at(outer)) return std::nullopt;
  }
  SealPlace place{above, std::string(kSealName), own.only, false};
  if (!own.single) place.only = name_of_place(own.folder) + "/";
  try {
    const auto sealed = read_seal(*folder_at(above)->open_member(place.name));
    const bool lists = std::ranges::any_of(sealed, [&](const SealedFile& file) {
      return own.single ? file.name == place.only : file.name.starts_with(place.only);
    });
    if (!lists) return std::nullopt;
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    // Whether this seal covers the path is unknown: the check of the seal will report what is
    // wrong.
  }
  return place;
}

Finding unreliable(const Error& error, std::string_view what, const std::string& shown,
                   const std::string& name) {
  if (is_no_answer(error.code())) throw;
  Finding finding = finding_from(error, shown);
  finding.code = ErrorCode::kSeal;
  finding.file = name;
  finding.message = cat(what, " cannot be relied on: ", finding.message);
  return finding;
}

SealReport check_seal(const SealPlace& place, const VerifyOptions& options) {
  return SealCheck(place, options).run();
}

std::vector<SealedFile> files_to_seal(const SealPlace& place, const VerifyOptions& options) {
  const auto folder = folder_at(place.folder);
  const std::vector<std::string> names = files_at(*folder, place);
  Sums sums(*folder, names, options);
  std::vector<SealedFile> sealed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    sealed.push_back({names[i], sums.open(i), 0});
    if (!options.fast) sums.want(i);
  }
  const Findings findings = sums.read();
  throw_if_damaged(findings, escape(place.folder.native()));
  for (std::size_t i = 0; i < sealed.size() && !options.fast; ++i)
    sealed[i].crc = sums.crc(i).value();
  return sealed;
}

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
      findings.push_back(
          {.code = ErrorCode::kSharedChanged,
           .message = cat("was changed after it was linked",
                          now.bytes == then.bytes
                              ? std::string()
                              : cat(" (", now.bytes, " bytes now, ", then.bytes, " then)"),
                          ": it now holds the data of the folder it came from"),
           .file = then.name});
    }
  } catch (const Error& error) {
    findings.push_back(
        unreliable(error, "the record of shared files", record, std::string(kSharedName)));
  }
  return findings;
}

}  // namespace fsdp::formats
