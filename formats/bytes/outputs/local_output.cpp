// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/local_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

LocalOutput::LocalOutput(const std::filesystem::path& destination, const OutputOptions& options,
                         OutputKind kind)
    : options_(options),
      new_folders_(options.make_folders ? NewFolders(destination) : NewFolders()),
      place_(destination, kind) {
  note_unfinished(*this);
}

LocalOutput::~LocalOutput() {
  forget_unfinished(*this);
  LocalOutput::abandon();
}

void LocalOutput::abandon() noexcept {
  if (committed_) return;
  if (temporary_.get() >= 0 && place_.stands_for(place_.temporary(), temporary_.get())) {
    if (options_.journal->keeps()) return new_folders_.keep();
    options_.journal->end();
    try {
      if (place_.kind() == OutputKind::kFolder) remove_files_in(temporary_.get(), place_.shown());
      place_.unlink_temporary();
    } catch (const std::exception&) {
      // The leftover stays for the next run.
    }
  }
  new_folders_.remove();
}

void LocalOutput::claim() {
  temporary_ =
      place_.claim([&](int temporary) { return options_.journal->takes(place_, temporary); });
}

void LocalOutput::look() const {
  if (options_.before_commit)
    look_before_commit(place_.path_of_temporary(), place_.shown(), options_);
}

bool LocalOutput::rename_to_free_name() const {
  const int folder = place_.parent();
  const char* from = place_.temporary().c_str();
  const char* to = place_.name().c_str();
  if (::renameat2(folder, from, folder, to, RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST) return false;
  if (!flag_unsupported()) throw_errno(place_.shown() + ": renaming the finished output");
  if (place_.kind() == OutputKind::kFolder) {
    // Plain rename can replace an empty folder only.
    if (::renameat(folder, from, folder, to) == 0) return true;
    if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) return false;
    throw_errno(place_.shown() + ": renaming the finished output");
  }
  // NFS: a hard link never replaces.
  if (::linkat(folder, from, folder, to, 0) != 0) {
    if (errno == EEXIST) return false;
    throw_errno(place_.shown() + ": linking the finished output");
  }
  if (::unlinkat(folder, from, 0) != 0)
    throw_errno(place_.shown() + ": removing " + place_.shown_temporary());
  return true;
}

void LocalOutput::note_placed(std::unique_lock<std::mutex>& committing) {
  committed_ = true;
  new_folders_.keep();
  note_committed();
  committing.unlock();
  temporary_.reset();  // and its lock, which would keep others from replacing a folder
  if (options_.sync) {
    try {
      place_.sync_parent();
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), "; the new one is in place, but may not survive a power cut");
    }
  }
  options_.journal->end();
}

Error LocalOutput::already_exists() const {
  return Error(ErrorCode::kExists, place_.shown() + ": exists", {Remedy::kReplace});
}

Error LocalOutput::appeared() const {
  return Error(ErrorCode::kExists, place_.shown() + ": appeared while it was being written",
               {Remedy::kReplace});
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
    throw Error(ErrorCode::kIo, shown, ": ", error.code().message());
  }
}

bool flag_unsupported() {
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
}

Error without_seal(ErrorCode code, std::string_view why, const std::string& shown) {
  return {code, why, "; the new ", shown, " is in place, without a seal"};
}

}  // namespace fsdp::formats
