// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/journal/run_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/journal/journal_file.h"
#include "formats/bytes/outputs/place.h"

namespace fsdp::formats {
namespace {

constexpr const char* kPlanName = "plan";
constexpr const char* kRankPrefix = "rank-";
// Each file costs an fsync.  With more files than this at once, extents grow in proportion, so that
// an fsync covers 4 MiB of an extent of 512 MiB.
constexpr std::uint64_t kFilesOfExtent = 128;
// Extents grow at most by this factor.
constexpr std::uint64_t kMostTimes = 16;
// The beginning of a plan's identity; changes with the format of the journals.
constexpr std::string_view kForm = "journal 1";

std::string rank_name(std::size_t rank) {
  return cat(kRankPrefix, rank);
}

// Returns a text that identifies an inode: its number is reused, but not with the same birth time.
std::string inode_text(int fd) {
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &info) != 0) return {};
  const bool born = (info.stx_mask & STATX_BTIME) != 0;
  return cat(info.stx_ino, " ", born ? info.stx_btime.tv_sec : 0, ".",
             born ? info.stx_btime.tv_nsec : 0);
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& PlanIdentity::parts() {
  const auto later = std::exchange(later_, {});
  for (const auto& add : later) add(*this);
  return parts_;
}

std::string RunJournal::shown(const std::string& name) const {
  return cat(output_, ": ", quote(cat(name_, "/", name), 4096), " beside it");
}

FileDescriptor RunJournal::open_journal(const std::string& name, int flags) const {
  return open_for_output(folder_.get(), name, flags | O_NOFOLLOW, 0666);
}

std::uint64_t RunJournal::room(std::size_t files) const {
  const std::uint64_t times = std::clamp<std::uint64_t>(files / kFilesOfExtent, 1, kMostTimes);
  const std::uint64_t most = options_.extent_bytes * times;
  return most - std::min(most - 1, pending_bytes_);
}

void RunJournal::add(const JournalEntry& entry, const std::set<OutputFile*>& files) {
  for (const JournalEntry::Run& run : entry.runs) pending_bytes_ += run.bytes;
  pending_.push_back(entry);
  pending_files_.insert(files.begin(), files.end());
  // Extents end at round offsets of their files, a little before they are full.
  if (pending_bytes_ < options_.extent_bytes / 2) return;
  for (OutputFile* const file : pending_files_) file->sync();
  append_record(own_, record_of(pending_), shown(rank_name(options_.team->rank())));
  pending_.clear();
  pending_files_.clear();
  pending_bytes_ = 0;
}

std::string RunJournal::plan_text(int temporary) {
  Packed packed;
  packed.text(kForm).text(inode_text(temporary));
  for (const auto& [what, is] : identity_->parts()) packed.text(what).text(is);
  return packed.take();
}

// Returns whether the plan is complete and belongs to this temporary.
// Throws: kMismatch naming what differs from this run's plan.
bool RunJournal::read_plan(int temporary) {
  const FileDescriptor fd = open_journal(kPlanName, O_RDONLY);
  if (fd.get() < 0) {
    if (errno == ENOENT) return false;
    throw_errno(shown(kPlanName));
  }
  const JournalRecords plan = read_journal(fd, shown(kPlanName));
  if (plan.records.empty()) return false;
  const std::string own = plan_text(temporary);
  if (plan.records.front() == own) return true;
  Unpacked theirs(plan.records.front());
  Unpacked ours(own);
  const auto other = [&](const std::string& what) {
    return Error(ErrorCode::kMismatch,
                 cat(output_, ": the journals beside it, ", quote(name_, 4096),
                     ", belong to another run: ", what),
                 {Remedy::kStartAnew});
  };
  if (theirs.text() != ours.text()) throw other("another version of fsdp-ckpt wrote them");
  // The temporary is another one: exchanged with the output, or made anew after it was removed by
  // hand.
  if (theirs.text() != ours.text()) return false;
  while (!theirs.empty() && !ours.empty()) {
    const std::string their_name(theirs.text());
    const std::string their_value(theirs.text());
    const std::string own_name(ours.text());
    const std::string own_value(ours.text());
    if (their_name != own_name)
      throw other(
          cat("they have ", quote(their_name, 200), " where this run has ", quote(own_name, 200)));
    if (their_value != own_value) {
      throw other(
          cat(escape(own_name), " is ", quote(own_value, 200), ", was ", quote(their_value, 200)));
    }
  }
  throw other(theirs.empty() ? "something was added" : "something is missing");
}

Error RunJournal::damaged(const std::string& what) const {
  return Error(
      ErrorCode::kMismatch,
      cat(output_, ": the journals beside it, ", quote(name_, 4096), ", are damaged: ", what),
      {Remedy::kStartAnew});
}

void RunJournal::read_entries() {
  for (const std::string& name : names_in(folder_.get(), output_)) {
    if (!name.starts_with(kRankPrefix)) continue;
    const FileDescriptor fd = open_journal(name, O_RDWR);
    if (fd.get() < 0) throw_errno(shown(name));
    const JournalRecords read = read_journal(fd, shown(name));
    for (const std::string& record : read.records) {
      try {
        for (JournalEntry& entry : entries_of(record)) found_.push_back(std::move(entry));
      } catch (const Error& error) {
        throw Error(ErrorCode::kMismatch,
                    cat(shown(name), ": the journal is damaged: ", error.what()),
                    {Remedy::kStartAnew});
      }
    }
    // Cuts off a torn record, so that the next record follows a whole one.
    if (::ftruncate(fd.get(), static_cast<off_t>(read.sound_bytes)) != 0) throw_errno(shown(name));
    sync_folder(fd.get(), shown(name) + ": fsync");
  }
}

bool RunJournal::takes(const OutputPlace& place, int temporary) {
  if (!asked()) return false;
  output_ = place.shown();
  name_ = place.journals();
  folder_ = open_for_output(place.parent(), name_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (folder_.get() < 0) {
    if (errno == ENOENT) return false;
    throw_errno(cat(output_, ": ", quote(name_, 4096), " beside it"));
  }
  if (!read_plan(temporary)) {
    folder_.reset();
    return false;
  }
  read_entries();
  for (const JournalEntry& entry : found_) {
    for (const JournalEntry::Run& run : entry.runs) files_.insert(run.file);
  }
  return true;
}

void RunJournal::begin(const OutputPlace& place, int temporary) {
  output_ = place.shown();
  name_ = place.journals();
  parent_ = place.parent();
  if (folder_.get() < 0) {
    if (::mkdirat(place.parent(), name_.c_str(), 0777) != 0)
      throw_errno(cat(output_, ": ", quote(name_, 4096), " beside it"));
    folder_ = open_folder_in(place.parent(), name_, output_);
    const FileDescriptor plan = open_journal(kPlanName, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
    if (plan.get() < 0) throw_errno(shown(kPlanName));
    append_record(plan, plan_text(temporary), shown(kPlanName));
  }
  for (std::size_t rank = 0; rank < options_.team->size(); ++rank) {
    FileDescriptor fd = open_journal(rank_name(rank), O_WRONLY | O_CREAT | O_APPEND);
    if (fd.get() < 0) throw_errno(shown(rank_name(rank)));
    if (rank == 0) own_ = std::move(fd);
  }
  sync_folder(folder_.get(), output_ + ": fsync");
  place.sync_parent();  // Makes the temporary's name durable; journals are useless without it.
}

void RunJournal::meet(const OutputPlace& place) {
  Team& team = *options_.team;
  output_ = place.shown();
  name_ = place.journals();
  const std::string all = team.from_leader("journals", record_of(found_));
  if (!team.leads()) {
    found_ = entries_of(all);
    folder_ = open_folder_in(place.parent(), name_, output_);
    own_ = open_journal(rank_name(team.rank()), O_WRONLY | O_APPEND);
    if (own_.get() < 0) throw_errno(shown(rank_name(team.rank())));
  }
}

bool RunJournal::keeps() const noexcept {
  const bool stopped = interrupted() || options_.team->stopped();
  if (folder_.get() < 0 || !(asked() || options_.team->lost() || stopped)) return false;
  try {
    for (const std::string& name : names_in(folder_.get(), output_)) {
      struct stat info {};
      if (name.starts_with(kRankPrefix) &&
          ::fstatat(folder_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          info.st_size != 0) {
        return true;
      }
    }
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

// Files that stay belong to no temporary any more; the next run removes them.
void RunJournal::end() noexcept {
  if (folder_.get() < 0 || parent_ < 0) return;
  try {
    remove_files_in(folder_.get(), output_);
    ::unlinkat(parent_, name_.c_str(), AT_REMOVEDIR);
  } catch (const std::exception&) {
  }
}

}  // namespace fsdp::formats
