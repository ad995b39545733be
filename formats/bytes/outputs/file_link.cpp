// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/file_link.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/place.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kCopyBufferBytes = 4U << 20U;

// Returns false if no hard link can be made, whatever the reason: a copy can be made instead.
bool hard_link(const File& source, int folder, const std::string& name, const std::string& shown,
               bool sync) {
  struct stat file {};
  struct stat there {};
  if (::fstat(source.fd(), &file) != 0 || ::fstat(folder, &there) != 0) throw_errno(shown);
  if (file.st_dev != there.st_dev) return false;
  // Before the link, which would make the inode one that has to be synced.
  if (sync && ::fdatasync(source.fd()) != 0 && errno != EINVAL && errno != EROFS)
    throw_errno(source.name() + ": fdatasync");
  // The descriptor rather than the name, which may refer to another file by now.
  const std::string opened = cat("/proc/self/fd/", source.fd());
  if (::linkat(AT_FDCWD, opened.c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
  if (errno == EEXIST) throw Error(ErrorCode::kExists, shown + ": is written twice");
  if (errno == ENOSPC || errno == EDQUOT || errno == EIO) throw_errno(shown);
  return false;
}

// Hands out the whole file, a part at a time.
template <typename Take>
void read_whole(const File& source, const Take& take) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kCopyBufferBytes, source.size()));
  read_parts(source, 0, source.size(), buffer,
             [&](std::uint64_t at, std::span<const std::byte> bytes) {
               throw_if_interrupted();
               take(at, bytes);
             });
}

}  // namespace

void copy_bytes(const File& source, OutputFile& out, const SharingOptions& options) {
  out.reserve(source.size());
  read_whole(source, [&](std::uint64_t at, std::span<const std::byte> bytes) {
    out.write_at(at, bytes);
    if (options.copied_crc != nullptr) *options.copied_crc = crc32(*options.copied_crc, bytes);
    if (options.on_copied) options.on_copied(bytes.size());
  });
}

bool may_reflink(const std::filesystem::path& folder) {
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) throw_errno(escape(folder.native()));
  constexpr std::uint64_t kKinds[] = {0x9123683E, 0x58465342, 0xCA451A4E};
  return std::find(std::begin(kKinds), std::end(kKinds), static_cast<std::uint64_t>(info.f_type)) !=
         std::end(kKinds);
}

bool on_one_file_system(const File& source, const std::filesystem::path& folder) {
  if (source.fd() < 0) return false;
  // Hard links between two mounts of one file system are not possible either.
  struct statx file {};
  struct statx there {};
  constexpr unsigned kWanted = STATX_MNT_ID;
  if (::statx(source.fd(), "", AT_EMPTY_PATH, kWanted, &file) != 0) throw_errno(source.name());
  if (::statx(AT_FDCWD, folder.c_str(), 0, kWanted, &there) != 0)
    throw_errno(escape(folder.native()));
  return file.stx_dev_major == there.stx_dev_major && file.stx_dev_minor == there.stx_dev_minor &&
         file.stx_mnt_id == there.stx_mnt_id;
}

std::uint32_t crc_of(const File& file) {
  std::uint32_t crc = 0;
  read_whole(file,
             [&](std::uint64_t, std::span<const std::byte> bytes) { crc = crc32(crc, bytes); });
  return crc;
}

Sharing share_file(const File& source, int folder, const std::string& name,
                   const std::string& shown, const SharingOptions& options) {
  FileDescriptor fd = create_for_output(folder, name, shown);
  const bool local = source.fd() >= 0;
  const bool reflinked = local && ::ioctl(fd.get(), FICLONE, source.fd()) == 0;
  if (!reflinked && local && options.hard_link) {
    if (::unlinkat(folder, name.c_str(), 0) != 0) throw_errno(shown);
    if (hard_link(source, folder, name, shown, options.sync)) return Sharing::kHardLink;
    fd = create_for_output(folder, name, shown);
  }
  OutputFile out(std::move(fd), shown, options.sync);
  if (!reflinked) copy_bytes(source, out, options);
  out.finish(options.sync);
  return reflinked ? Sharing::kReflink : Sharing::kCopy;
}

}  // namespace fsdp::formats
