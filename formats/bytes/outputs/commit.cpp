// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/commit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

void look_before_commit(const OutputPlace& place, const OutputOptions& options) {
  if (options.before_commit) look_before_commit(place.path_of_temporary(), place.shown(), options);
}

void look_before_commit(const std::filesystem::path& written, const std::string& shown,
                        const OutputOptions& options) {
  if (!options.before_commit) return;
  const auto renamed = [&](std::string text) {
    const std::string name = escape(written.native());
    for (std::size_t at = 0; (at = text.find(name, at)) != text.npos; at += shown.size())
      text.replace(at, name.size(), shown);
    return text;
  };
  try {
    options.before_commit(written);
  } catch (const Error& error) {
    throw error.saying(renamed(error.what()));
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(ErrorCode::kIo, cat(shown, ": ", error.code().message()));
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

Error without_seal(ErrorCode code, std::string_view why, const std::string& shown) {
  return {code, cat(why, "; the new ", shown, " is in place, without a seal")};
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
