// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/published_check.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/sha256.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/git_blob.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/store/place.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// A fast comparison reads files up to this size.
constexpr std::uint64_t kFastBytes = 1U << 20U;
// A pointer of git LFS has some 130 bytes, and at most 1024 [git-lfs, docs/spec.md].
constexpr std::uint64_t kMostPointer = 1024;
constexpr std::string_view kPointerBegin = "version https://git-lfs.github.com/spec/v1\n";

std::string packed_list(const PublishedFiles& published) {
  Packed packed;
  packed.text(published.revision).text(published.commit).text(published.download);
  packed.text(published.prefix).number(published.files.size());
  for (const PublishedFile& file : published.files) {
    packed.text(file.name).number(file.bytes).number(static_cast<std::uint64_t>(file.kind));
    packed.text(file.digest);
  }
  return packed.take();
}

PublishedFiles unpacked_list(std::string_view text) {
  Unpacked fields(text);
  PublishedFiles published;
  published.revision = fields.text();
  published.commit = fields.text();
  published.download = fields.text();
  published.prefix = fields.text();
  for (std::uint64_t left = fields.number(); left != 0; --left) {
    PublishedFile file;
    file.name = fields.text();
    file.bytes = fields.number();
    file.kind = static_cast<DigestKind>(fields.number());
    file.digest = fields.text();
    published.files.push_back(std::move(file));
  }
  return published;
}

const Publisher& publisher_of(const std::string& url) {
  const auto* const publisher = dynamic_cast<const Publisher*>(store_of(url));
  if (publisher != nullptr) return *publisher;
  throw Error(ErrorCode::kUsage, escape(url),
              ": has no digests to compare with: expected hf://org/name[@revision]");
}

// Returns whether a file is beside those of a repository: git's own, those that a download to a
// folder leaves (DEFAULT_IGNORE_PATTERNS of huggingface_hub), and the seal.
bool is_never_published(std::string_view name) {
  const std::string within = cat("/", name, "/");
  return within.find("/.git/") != within.npos ||
         within.find("/.cache/huggingface/") != within.npos || name == kSealName;
}

// Returns the name as a shell takes it; nothing if it holds what a shell or a terminal would act on
// within quotes.
std::optional<std::string> shell_word(const std::string& name) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/+=,@%-";
  if (name.starts_with('-') || escape(name) != name || name.find('\'') != name.npos)
    return std::nullopt;
  return name.find_first_not_of(kPlain) == name.npos ? name : cat("'", name, "'");
}

std::string_view digest_name(DigestKind kind) {
  return kind == DigestKind::kSha256 ? "SHA-256" : "git's SHA-1";
}

// Reads the whole file.  `read` receives the number of bytes of each part.
template <typename Digest, typename Read>
std::string digest_of_file(Digest digest, const File& file, std::span<std::byte> buffer,
                           const Read& read) {
  read_parts(file, 0, file.size(), buffer, [&](std::uint64_t, std::span<const std::byte> bytes) {
    digest->add(bytes);
    read(bytes.size());
  });
  file.check_unchanged();
  return digest->finish();
}

// Returns whether the file is git LFS's pointer to the content with this SHA-256.
bool is_pointer_to(const File& file, const std::string& digest) {
  if (file.size() > kMostPointer) return false;
  const std::string text = read_text(file, kMostPointer);
  return text.starts_with(kPointerBegin) && text.find("oid sha256:" + digest) != text.npos;
}

class FolderComparison {
 public:
  FolderComparison(const fs::path& folder, const PublishedFiles& published,
                   const VerifyOptions& options, PublishedReport& report)
      : folder_(folder_at(folder)), published_(published), options_(options), report_(report) {}

  void run(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    match_names();
    read_files(progress);
    // Only the first ones may be shown.
    for (const PublishedState state : {PublishedState::kDiffers, PublishedState::kUnchecked,
                                       PublishedState::kMissing, PublishedState::kExtra}) {
      for (const ComparedFile& file : report_.files) {
        if (file.state == state) judge(file);
      }
    }
  }

 private:
  // Lists the files of both sides, and decides which are to be compared.
  void match_names() {
    std::vector<std::string> here = folder_->list_files();
    std::erase_if(here, [&](const std::string& name) {
      return is_never_published(name) && !is_published(name);
    });
    auto local = here.begin();
    const auto take_extra = [&] {
      report_.files.push_back({.name = std::move(*local++), .state = PublishedState::kExtra});
    };
    for (const PublishedFile& there : published_.files) {
      while (local != here.end() && *local < there.name) take_extra();
      ComparedFile file{.name = there.name,
                        .state = PublishedState::kMissing,
                        .kind = there.kind,
                        .expected_bytes = there.bytes,
                        .expected = there.digest};
      if (local != here.end() && *local == there.name) {
        ++local;
        compared_.push_back(report_.files.size());
        total_ += there.bytes;
      }
      report_.files.push_back(std::move(file));
    }
    while (local != here.end()) take_extra();
    // A thread that took a large file last would leave the others idle.
    std::ranges::stable_sort(compared_, std::greater(), [&](std::size_t i) {
      return report_.files[i].expected_bytes.value_or(0);
    });
  }

  bool is_published(const std::string& name) const {
    return std::ranges::binary_search(published_.files, name, {}, &PublishedFile::name);
  }

  void read_files(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    std::mutex mutex;
    std::uint64_t bytes = 0;
    const auto read = [&](std::uint64_t count) {
      if (options_.cancelled && options_.cancelled())
        throw Error(ErrorCode::kInterrupted, "interrupted");
      const std::lock_guard lock(mutex);
      bytes += count;
      if (progress) progress(options_.team->progress(bytes), total_);
    };
    VerifyReport checked;
    VerifyOptions quiet = options_;
    quiet.on_progress = {};
    std::vector<bool> own(compared_.size(), false);
    run_checks(
        compared_.size(), quiet, checked,
        [&](std::size_t i, std::span<std::byte> buffer) {
          {
            const std::lock_guard lock(mutex);
            own[i] = true;
          }
          compare(report_.files[compared_[i]], buffer, read);
          return CheckResult();
        },
        [&](std::size_t i, const Error& error) {
          ComparedFile& file = report_.files[compared_[i]];
          Finding finding = finding_from(error, escape((folder_->path() / file.name).native()));
          finding.file = file.name;
          file.state = PublishedState::kUnchecked;
          file.reason = finding.message;
          return finding;
        },
        {},
        [&](std::size_t i) {
          if (!folder_->read_by_requests() || options_.fast) return false;
          const auto file = folder_->open_member_if_present(report_.files[compared_[i]].name);
          return file && file->read_ahead(0, file->size());
        });
    report_.findings = std::move(checked.findings);
    join(own);
  }

  template <typename Read>
  void compare(ComparedFile& file, std::span<std::byte> buffer, const Read& read) const {
    const auto opened = folder_->open_member_if_present(file.name);
    if (!opened) return;  // a link that leads nowhere
    file.found_bytes = opened->size();
    const bool same_size = file.found_bytes == file.expected_bytes;
    if (file.expected.empty()) {
      file.state = same_size ? PublishedState::kUnchecked : PublishedState::kDiffers;
      file.reason = cat("the hub does not name ", digest_name(file.kind), " of it");
      return;
    }
    if (options_.fast && opened->size() > kFastBytes) {
      file.state = same_size ? PublishedState::kSameSize : PublishedState::kDiffers;
      return;
    }
    if (file.kind == DigestKind::kSha256) {
      file.found = digest_of_file(std::make_unique<Sha256>(), *opened, buffer, read);
    } else {
      file.found =
          digest_of_file(std::make_unique<GitBlobDigest>(opened->size()), *opened, buffer, read);
    }
    file.state = file.found == file.expected ? PublishedState::kSame : PublishedState::kDiffers;
    if (file.kind == DigestKind::kSha256 && !same_size && is_pointer_to(*opened, file.expected))
      file.reason = "is git LFS's pointer to the file, not the file: git lfs pull fetches it";
  }

  // Takes over what the other members of a team have compared.
  void join(const std::vector<bool>& own) {
    if (options_.team->alone()) return;
    Packed mine;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (!own[i]) continue;
      const ComparedFile& file = report_.files[compared_[i]];
      mine.number(compared_[i]).number(static_cast<std::uint64_t>(file.state));
      mine.number(file.found_bytes ? 1 : 0).number(file.found_bytes.value_or(0));
      mine.text(file.found).text(file.reason);
    }
    for (const std::string& sent : options_.team->exchange("digests of files", mine.take())) {
      for (Unpacked fields(sent); !fields.empty();) {
        ComparedFile& file = report_.files.at(fields.number());
        file.state = static_cast<PublishedState>(fields.number());
        const bool known = fields.number() != 0;
        const std::uint64_t bytes = fields.number();
        file.found_bytes = known ? std::optional(bytes) : std::nullopt;
        file.found = fields.text();
        file.reason = fields.text();
      }
    }
  }

  void add(ErrorCode code, const ComparedFile& file, Finding::Severity severity,
           std::string message) {
    Finding finding{
        .code = code, .message = std::move(message), .file = file.name, .severity = severity};
    const auto word = shell_word(published_.prefix + file.name);
    if (file.expected_bytes && word && code != ErrorCode::kHubUnchecked)
      finding.hint = {Remedy::kDownload, published_.download + *word};
    report_.findings.push_back(std::move(finding));
  }

  // Adds the finding about a file, if there is one.  Errors of reading have theirs already.
  void judge(const ComparedFile& file) {
    const std::uint64_t expected = file.expected_bytes.value_or(0);
    switch (file.state) {
      case PublishedState::kSame:
      case PublishedState::kSameSize:
        return;
      case PublishedState::kDiffers:
        add(ErrorCode::kHubMismatch, file, Finding::Severity::kDamage, difference_text(file));
        return;
      case PublishedState::kMissing:
        add(ErrorCode::kHubMissing, file, Finding::Severity::kWarning,
            cat("is not here; the hub has it with ", expected, " bytes"));
        return;
      case PublishedState::kExtra:
        add(ErrorCode::kHubExtra, file, Finding::Severity::kWarning, "is not on the hub");
        return;
      case PublishedState::kUnchecked:
        if (!file.found_bytes || !file.expected.empty()) return;
        add(ErrorCode::kHubUnchecked, file, Finding::Severity::kUnknown,
            cat("was not compared but for its size: ", file.reason));
        return;
    }
  }

  static std::string difference_text(const ComparedFile& file) {
    const std::uint64_t expected = file.expected_bytes.value_or(0);
    const std::uint64_t found = file.found_bytes.value_or(0);
    if (!file.reason.empty() && !file.expected.empty()) return file.reason;
    std::string text = expected == found ? cat("has ", found, " bytes as on the hub, but ")
                                         : cat("has ", found, " bytes, on the hub ", expected,
                                               file.found.empty() ? "" : "; ");
    if (!file.found.empty())
      text += cat(digest_name(file.kind), " computed ", file.found, ", on the hub ", file.expected);
    return text;
  }

  std::shared_ptr<const Folder> folder_;
  const PublishedFiles& published_;
  const VerifyOptions& options_;
  PublishedReport& report_;
  std::vector<std::size_t> compared_;  // positions of the files on both sides, the largest first
  std::uint64_t total_ = 0;            // bytes of those
};

}  // namespace

std::string_view state_name(PublishedState state) noexcept {
  switch (state) {
    case PublishedState::kSame:
      return "same";
    case PublishedState::kSameSize:
      return "same-size";
    case PublishedState::kDiffers:
      return "differs";
    case PublishedState::kMissing:
      return "missing";
    case PublishedState::kExtra:
      return "extra";
    case PublishedState::kUnchecked:
      break;
  }
  return "unchecked";
}

std::uint64_t PublishedReport::count(PublishedState state) const {
  return static_cast<std::uint64_t>(std::ranges::count(files, state, &ComparedFile::state));
}

bool PublishedReport::matches() const {
  return !url.empty() && count(PublishedState::kDiffers) == 0 &&
         count(PublishedState::kUnchecked) == 0;
}

bool PublishedReport::proves() const {
  return matches() && whole && count(PublishedState::kExtra) == 0;
}

PublishedComparison::PublishedComparison(const std::string& url, Team& team) : url_(url_of(url)) {
  const Publisher& publisher = publisher_of(url_);
  std::string list;
  if (team.leads()) list = packed_list(publisher.published(url_));
  published_ = unpacked_list(team.from_leader("list of the hub", std::move(list)));
}

PublishedReport PublishedComparison::compare(
    const fs::path& folder, const VerifyOptions& options,
    const std::function<void(std::uint64_t bytes, std::uint64_t total)>& progress) const {
  PublishedReport report;
  report.url = escape(url_);
  report.revision = published_.revision;
  report.commit = published_.commit;
  report.whole = !options.fast;
  FolderComparison(folder, published_, options, report).run(progress);
  return report;
}

}  // namespace fsdp::formats
