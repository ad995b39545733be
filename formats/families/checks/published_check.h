// SPDX-License-Identifier: Apache-2.0
// Compares a folder with the files that a hub has: with their names, sizes and digests, without
// their bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/store/published.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

enum class PublishedState {
  kSame,       // by its digest
  kSameSize,   // by its size alone: VerifyOptions::fast
  kDiffers,    // by its size or its digest
  kMissing,    // it is not in the folder
  kExtra,      // it is only in the folder
  kUnchecked,  // it could not be compared; there is a reason
};

// "same", "same-size", "differs", "missing", "extra", "unchecked".
std::string_view state_name(PublishedState state) noexcept;

struct ComparedFile {
  std::string name;
  PublishedState state = PublishedState::kUnchecked;
  DigestKind kind = DigestKind::kSha256;
  // Of the hub and of the folder; nullopt and empty: it is not there, or not known.
  std::optional<std::uint64_t> expected_bytes = {};
  std::optional<std::uint64_t> found_bytes = {};
  std::string expected = {};
  std::string found = {};
  std::string reason = {};  // of kUnchecked
};

struct PublishedReport {
  std::string url;  // escaped; empty: nothing was compared
  std::string revision;
  std::string commit;
  std::vector<ComparedFile> files;  // sorted by name
  bool whole = false;               // every byte was read that a digest is of
  Findings findings;

  std::uint64_t count(PublishedState state) const;
  // Returns whether no file differs, and all that are on both sides could be compared.
  bool matches() const;
  // Returns whether, besides, every byte of the folder was compared with a digest.
  bool proves() const;
};

// One comparison.
class PublishedComparison {
 public:
  // Asks the hub for the list of files; in a team, its leader does.  `url`: of a store that is a
  // Publisher.
  // Throws: kUsage for another URL; what Publisher::published throws.
  PublishedComparison(const std::string& url, Team& team);

  // Compares the files below `folder`.  Files that are never published are left out: those of git,
  // those that a download leaves in .cache/huggingface, and the folder's seal.  Files are read
  // once, the largest first, on several threads with 1 MiB each.  Links into the blobs of the hub's
  // cache count as the files.  `options.fast`: compares files above 1 MiB by their sizes alone.
  // `progress` receives the bytes read so far, and those to be read; one thread at a time.
  // Findings: kHubMismatch; kHubUnchecked, unknown; kHubMissing and kHubExtra, warnings; and codes
  // of read errors.
  // Throws: kInterrupted, kNotFound, what listing the folder throws.
  PublishedReport compare(
      const std::filesystem::path& folder, const VerifyOptions& options,
      const std::function<void(std::uint64_t bytes, std::uint64_t total)>& progress) const;

 private:
  std::string url_;
  PublishedFiles published_;
};

}  // namespace fsdp::formats
