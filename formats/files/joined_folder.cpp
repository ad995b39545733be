// SPDX-License-Identifier: Apache-2.0
#include "formats/files/joined_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/output_place.h"

namespace fsdp::formats {

JoinedFolder::JoinedFolder(const std::filesystem::path& destination,
                           const std::string& invitation) {
  const OutputPlace place(destination, OutputKind::kFolder);
  shown_ = place.shown();
  if (!is_plain_name(invitation)) {
    throw Error(ErrorCode::kPath, cat(shown_, ": ", quote(invitation), " is not an invitation"));
  }
  folder_ =
      open_for_output(place.parent(), place.temporary(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  struct stat info {};
  if (folder_.get() >= 0 &&
      ::fstatat(folder_.get(), invitation.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return;
  }
  if (errno != ENOENT && errno != ENOTDIR) {
    throw_errno(cat(shown_, ": ", place.shown_temporary()));
  }
  throw Error(ErrorCode::kNotFound,
              cat(shown_, ": the folder being written, ", place.shown_temporary(),
                  folder_.get() < 0 ? ", is not there" : ", is another one",
                  "; is it on a file system that all writers share?"));
}

std::unique_ptr<OutputFile> JoinedFolder::add_file(const std::string& name, bool synced,
                                                   bool summed) const {
  const std::string shown = cat(shown_, "/", escape(name));
  if (!is_plain_name(name)) {
    throw Error(ErrorCode::kPath,
                cat(shown_, ": ", quote(name), " is not the name of a file in a folder"));
  }
  FileDescriptor fd = open_for_output(folder_.get(), name, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (fd.get() < 0) {
    if (errno == EEXIST) throw Error(ErrorCode::kExists, shown + ": is written twice");
    throw_errno(shown);
  }
  return std::make_unique<OutputFile>(std::move(fd), shown, synced, summed);
}

}  // namespace fsdp::formats
