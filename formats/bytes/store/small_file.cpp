// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/file_descriptor.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

[[noreturn]] void fail(const std::string& path, int number) {
  const bool denied = number == EACCES || number == EPERM;
  throw Error(denied ? ErrorCode::kAccess : ErrorCode::kIo,
              cat(escape(path), ": ", std::generic_category().message(number)));
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path, std::size_t most) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail(path, errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorCode::kNotRegular, escape(path) + ": is not a regular file");
  std::string text(most, '\0');
  std::size_t size = 0;
  while (size < most) {
    const ssize_t got = ::read(file.get(), text.data() + size, most - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

}  // namespace fsdp::formats
