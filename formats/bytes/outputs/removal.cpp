// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/removal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <optional>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/place.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kRemovedSuffix = ".fsdp-removed";
// Far more than the files of any checkpoint.
constexpr std::size_t kMaxMembers = 1'000'000;
constexpr int kMaxRemovedDepth = 16;

// Adds the state of `name` in an open folder, at `path` below the checkpoint, and of what is in it.
// Returns false if there is nothing of that name.
bool add_state(int folder, const std::string& name, const std::string& path, int depth,
               const std::string& shown, RemovableState& state) {
  const std::string words = path.empty() ? shown : cat(shown, ": ", quote(path, 200));
  struct stat info {};
  if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return false;
    throw_errno(words);
  }
  if (state.size() == kMaxMembers)
    throw Error(ErrorCode::kLimitEntries, shown, ": holds more than ", kMaxMembers, " files");
  RemovableMember member;
  member.name = path;
  member.is_folder = S_ISDIR(info.st_mode);
  member.is_regular = S_ISREG(info.st_mode);
  member.device = info.st_dev;
  member.inode = info.st_ino;
  member.bytes = member.is_folder ? 0 : static_cast<std::uint64_t>(info.st_size);
  member.mtime_ns =
      static_cast<std::int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  state.push_back(member);
  if (!member.is_folder) return true;
  if (depth == kMaxRemovedDepth) {
    throw Error(ErrorCode::kLimitDepth, words, ": folders are more than ", kMaxRemovedDepth,
                " deep");
  }
  const FileDescriptor inner = open_folder_in(folder, name, words);
  for (const std::string& one : names_in(inner.get(), words))
    add_state(inner.get(), one, path.empty() ? one : cat(path, "/", one), depth + 1, shown, state);
  return true;
}

// Returns nothing if there is nothing of that name.
std::optional<RemovableState> state_of(int parent, const std::string& name,
                                       const std::string& shown) {
  RemovableState state;
  return add_state(parent, name, "", 0, shown, state) ? std::optional(std::move(state))
                                                      : std::nullopt;
}

// Removes a file, or a folder with everything in it; it is not an error if something is gone
// already.  Does not follow links.
void remove_tree(int parent, const std::string& name, const std::string& shown, int depth) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR || depth > kMaxRemovedDepth)
    throw_errno(cat(shown, ": removing ", quote(name, 200)));
  {
    const FileDescriptor folder = open_folder_in(parent, name, shown);
    for (const std::string& one : names_in(folder.get(), shown))
      remove_tree(folder.get(), one, shown, depth + 1);
  }
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    throw_errno(cat(shown, ": removing ", quote(name, 200)));
}

// Renames if nothing has the new name.  Returns false if the old name is gone.
// Throws: kExists, kIo.
bool rename_in(int folder, const std::string& from, const std::string& to,
               const std::string& shown) {
  if (::renameat2(folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) {
    // The file system lacks that flag.  The lock keeps other runs of this kind away, and no one
    // else uses the name.
    struct stat info {};
    const bool taken = ::fstatat(folder, to.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!taken && ::renameat(folder, from.c_str(), folder, to.c_str()) == 0) return true;
    if (taken) errno = EEXIST;
  }
  if (errno == ENOENT) return false;
  if (errno == EEXIST)
    throw Error(ErrorCode::kExists, shown, ": ", quote(to, 200), " beside it is in the way");
  throw_errno(shown);
}

Error changed(const std::string& shown) {
  return Error(ErrorCode::kChanged,
               shown + ": was changed after it was examined, and is not removed");
}

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const std::string name = escape(path.native());
  if (fd_.get() < 0) throw_errno(name);
  if (try_lock(fd_.get(), name) == Locked::kBusy)
    throw Error(ErrorCode::kBusy, name + ": another process removes checkpoints here");
}

std::string RunFolder::shown(const std::filesystem::path& below) const {
  return escape((path_ / below).native());
}

FileDescriptor RunFolder::open_parent(const std::filesystem::path& below) const {
  FileDescriptor at(::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) throw_errno(shown({}));
  for (const auto& step : below.parent_path()) {
    FileDescriptor next = open_folder_in(at.get(), step.native(), shown(below));
    at = std::move(next);
  }
  return at;
}

RemovableState RunFolder::state(const std::filesystem::path& below) const {
  const FileDescriptor parent = open_parent(below);
  auto state = state_of(parent.get(), below.filename().native(), shown(below));
  if (!state) throw Error(ErrorCode::kNotFound, shown(below) + ": is gone");
  return std::move(*state);
}

void RunFolder::remove(const std::filesystem::path& below, const RemovableState& state) const {
  const std::string name = below.filename().native();
  const std::string words = shown(below);
  const FileDescriptor parent = open_parent(below);
  const auto now = state_of(parent.get(), name, words);
  if (!now) return;
  if (*now != state) throw changed(words);
  const std::string removed = cat(".", name, kRemovedSuffix);
  if (!rename_in(parent.get(), name, removed, words)) return;
  // Under its new name only a writer that had it open can still reach it.
  try {
    if (state_of(parent.get(), removed, words) != state) throw changed(words);
  } catch (...) {
    rename_in(parent.get(), removed, name, words);
    throw;
  }
  const auto left = [&](ErrorCode code, std::string_view why) {
    return Error(code, why, "; the checkpoint is removed from the run, but its rest, ",
                 quote(removed, 200), ", remains");
  };
  try {
    sync_folder(parent.get(), words + ": fsync of its folder");
    remove_tree(parent.get(), removed, words, 0);
    sync_folder(parent.get(), words + ": fsync of its folder");
  } catch (const Error& error) {
    throw left(ErrorCode::kIo, error.what());
  } catch (const std::bad_alloc&) {
    throw left(ErrorCode::kOutOfMemory, words + ": out of memory");
  }
}

std::vector<std::filesystem::path> RunFolder::leftovers_beside(
    const std::filesystem::path& below) const {
  const FileDescriptor parent = open_parent(below);
  std::vector<std::filesystem::path> leftovers;
  for (const std::string& name : names_in(parent.get(), shown(below))) {
    const bool removed = name.starts_with('.') && name.size() > kRemovedSuffix.size() + 1 &&
                         name.ends_with(kRemovedSuffix);
    if (removed) leftovers.push_back(below.parent_path() / name);
  }
  return leftovers;
}

void RunFolder::remove_leftover(const std::filesystem::path& leftover) const {
  const FileDescriptor parent = open_parent(leftover);
  remove_tree(parent.get(), leftover.filename(), shown(leftover), 0);
}

}  // namespace fsdp::formats
