// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/file_times.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/store/snapshot.h"

namespace fsdp::formats {
namespace {

constexpr unsigned kWanted = STATX_BASIC_STATS | STATX_BTIME;

std::int64_t nanoseconds(const statx_timestamp& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

FileTimes times_from(const struct statx& info) {
  FileTimes times{info.stx_size, info.stx_ino, nanoseconds(info.stx_mtime), std::nullopt};
  if ((info.stx_mask & STATX_BTIME) != 0) times.born_ns = nanoseconds(info.stx_btime);
  return times;
}

}  // namespace

FileTimes times_of(const File& file) {
  if (file.fd() < 0) return {file.size(), 0, file.mtime_ns(), std::nullopt};
  struct statx info {};
  if (::statx(file.fd(), "", AT_EMPTY_PATH, kWanted, &info) != 0) throw_errno(file.name());
  return times_from(info);
}

std::optional<FileTimes> times_at(const std::filesystem::path& path) {
  if (in_store(path)) {
    const auto stored = find_stored(url_of(path));
    if (!stored || stored->mtime_ns == 0) return std::nullopt;
    return FileTimes{stored->bytes, 0, stored->mtime_ns, std::nullopt};
  }
  struct statx info {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, kWanted, &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EACCES)
      return std::nullopt;
    throw_errno(escape(path.native()));
  }
  if (!S_ISREG(info.stx_mode)) return std::nullopt;
  return times_from(info);
}

}  // namespace fsdp::formats
