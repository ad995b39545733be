// SPDX-License-Identifier: Apache-2.0
#include "formats/files/output_commit.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/base/text.h"
#include "formats/files/atomic_output.h"

namespace fsdp::formats {
namespace {

std::mutex unfinished_mutex;
std::vector<Unfinished*> unfinished;
std::atomic<std::uint64_t> committed{0};

}  // namespace

std::mutex& commit_mutex() {
  static std::mutex mutex;
  return mutex;
}

void note_committed() noexcept {
  ++committed;
}
std::uint64_t outputs_committed() noexcept {
  return committed;
}

void note_unfinished(Unfinished& output) {
  const std::lock_guard lock(unfinished_mutex);
  unfinished.push_back(&output);
}
void forget_unfinished(Unfinished& output) noexcept {
  const std::lock_guard lock(unfinished_mutex);
  std::erase(unfinished, &output);
}

void abandon_outputs() noexcept {
  commit_mutex().lock();
  const std::lock_guard lock(unfinished_mutex);
  for (Unfinished* const output : unfinished) output->abandon();
}

void look_before_commit(const OutputPlace& place, const OutputOptions& options) {
  if (!options.before_commit) return;
  const std::filesystem::path opened = place.path_of_temporary();
  const auto renamed = [&](std::string text) {
    const std::string name = escape(opened.native());
    for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; at += place.shown().size())
      text.replace(at, name.size(), place.shown());
    return text;
  };
  try {
    options.before_commit(opened);
  } catch (const Error& error) {
    throw error.saying(renamed(error.what()));
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(ErrorCode::kIo, cat(place.shown(), ": ", error.code().message()));
  }
}

bool flag_unsupported() {
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
}

Error already_exists(const OutputPlace& place) {
  return Error(ErrorCode::kExists, place.shown() + ": exists", {Remedy::kReplace});
}

Error appeared(const OutputPlace& place) {
  return Error(ErrorCode::kExists, place.shown() + ": appeared while it was being written",
               {Remedy::kReplace});
}

bool rename_to_free_name(const OutputPlace& place, OutputKind kind) {
  const int folder = place.parent();
  const char* from = place.temporary().c_str();
  const char* to = place.name().c_str();
  if (::renameat2(folder, from, folder, to, RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST) return false;
  if (!flag_unsupported()) throw_errno(place.shown() + ": renaming the finished output");
  if (kind == OutputKind::kFolder) {
    // Plain rename can replace an empty folder only.
    if (::renameat(folder, from, folder, to) == 0) return true;
    if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) return false;
    throw_errno(place.shown() + ": renaming the finished output");
  }
  // NFS: a hard link never replaces.
  if (::linkat(folder, from, folder, to, 0) != 0) {
    if (errno == EEXIST) return false;
    throw_errno(place.shown() + ": linking the finished output");
  }
  if (::unlinkat(folder, from, 0) != 0)
    throw_errno(place.shown() + ": removing " + place.shown_temporary());
  return true;
}

void sync_parent_after_rename(const OutputPlace& place) {
  try {
    place.sync_parent();
  } catch (const Error& e) {
    throw Error(e.code(),
                cat(e.what(), "; the new one is in place, but may not survive a power cut"));
  }
}

}  // namespace fsdp::formats
