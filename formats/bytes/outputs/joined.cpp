// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/joined.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/place.h"

namespace fsdp::formats {
namespace {

// Characters of the random text by which members know the file.
constexpr std::size_t kTokenBytes = 32;

std::string random_token() {
  std::random_device random;
  return cat(hex32(random()), hex32(random()), hex32(random()), hex32(random()));
}

bool holds(int fd, std::uint64_t at, std::string_view token) {
  std::array<char, kTokenBytes> found{};
  ssize_t got = 0;
  do {
    got = ::pread(fd, found.data(), found.size(), static_cast<off_t>(at));
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(token.size()) &&
         std::equal(token.begin(), token.end(), found.begin());
}

}  // namespace

int JoinedFile::descriptor() {
  const std::lock_guard lock(mutex_);
  if (fd_.get() < 0) fd_ = open_();
  return fd_.get();
}

JoinedFolder::JoinedFolder(const std::filesystem::path& destination,
                           const std::string& invitation) {
  const OutputPlace place(destination, OutputKind::kFolder);
  shown_ = place.shown();
  if (!is_plain_name(invitation))
    throw Error(ErrorCode::kPath, shown_, ": ", quote(invitation), " is not an invitation");
  folder_ =
      open_for_output(place.parent(), place.temporary(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  struct stat info {};
  if (folder_.get() >= 0 &&
      ::fstatat(folder_.get(), invitation.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return;
  }
  if (errno != ENOENT && errno != ENOTDIR) throw_errno(cat(shown_, ": ", place.shown_temporary()));
  throw Error(ErrorCode::kNotFound, shown_, ": the folder being written, ", place.shown_temporary(),
              folder_.get() < 0 ? ", is not there" : ", is another one",
              "; is it on a file system that all writers share?");
}

std::unique_ptr<OutputFile> JoinedFolder::add_file(const std::string& name, bool synced,
                                                   bool summed) const {
  const std::string shown = cat(shown_, "/", escape(name));
  if (!is_plain_name(name)) {
    throw Error(ErrorCode::kPath, shown_, ": ", quote(name),
                " is not the name of a file in a folder");
  }
  return std::make_unique<OutputFile>(create_for_output(folder_.get(), name, shown), shown, synced,
                                      summed);
}

FileDescriptor JoinedFolder::open_file(const std::string& name) const {
  FileDescriptor fd = open_for_output(folder_.get(), name, O_RDWR | O_NOFOLLOW, 0);
  if (fd.get() < 0) throw_errno(cat(shown_, "/", escape(name)));
  return fd;
}

// Inode numbers are reused, and devices have other numbers on other machines.  So the file holds a
// random text, after what an earlier run left in it, until every member has found the text.
void invite_to_file(Team& team, const FileDescriptor& fd, const std::string& shown) {
  if (team.alone()) return;
  const std::string token = random_token();
  const auto done = [&](ssize_t result) {
    if (result < 0) throw_errno(shown + ": inviting the other ranks");
  };
  struct stat info {};
  done(::fstat(fd.get(), &info));
  done(::pwrite(fd.get(), token.data(), token.size(), info.st_size));
  done(::fsync(fd.get()));  // Members on other machines see it then.
  const auto at = static_cast<std::uint64_t>(info.st_size);
  team.exchange("the output was made", Packed().number(at).text(token).take());
  team.exchange("the output was found");
  done(::ftruncate(fd.get(), info.st_size));
  team.exchange("the output is as before");  // What members put into it before would be gone.
}

std::unique_ptr<OutputFile> join_file(Team& team, const std::filesystem::path& destination,
                                      bool synced) {
  const std::string sent = team.exchange("the output was made").front();
  Unpacked fields(sent);
  const std::uint64_t at = fields.number();
  const std::string_view token = fields.text();
  const OutputPlace place(destination, OutputKind::kFile);
  FileDescriptor fd = open_for_output(place.parent(), place.temporary(), O_RDWR | O_NOFOLLOW, 0);
  if (fd.get() < 0 && errno != ENOENT)
    throw_errno(cat(place.shown(), ": ", place.shown_temporary()));
  if (fd.get() < 0 || !holds(fd.get(), at, token)) {
    throw Error(ErrorCode::kNotFound, place.shown(), ": the file being written, ",
                place.shown_temporary(), fd.get() < 0 ? ", is not there" : ", is another one",
                "; is it on a file system that all ranks share?");
  }
  team.exchange("the output was found");
  team.exchange("the output is as before");
  const auto kept = std::make_shared<FileDescriptor>(std::move(fd));
  return std::make_unique<JoinedFile>([kept] { return std::move(*kept); }, place.shown(), synced);
}

void await_files(Team& team) {
  team.exchange("the output was written");
}

void await_commit(Team& team) {
  team.exchange("the output is in place");
}

}  // namespace fsdp::formats
