// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/asked_file.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

// Bytes of one answer, at most.
constexpr std::uint64_t kMaxAsked = 1U << 20U;

struct Request {
  std::uint64_t offset;
  std::uint64_t bytes;
};

// Returns whether all bytes arrived.
bool receive(int fd, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::read(fd, out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// `send` is a call like write(2).
template <typename Send>
bool send_all(std::span<const std::byte> bytes, const Send& send) {
  while (!bytes.empty()) {
    const ssize_t sent = send(bytes.data(), bytes.size());
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

Connection connect_here() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw_errno("socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void AskedFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    throw Error(ErrorCode::kTruncated, cat(out.size(), " bytes at byte ", offset,
                                           " are needed, but the file has ", size_));
  }
  while (!out.empty()) {
    const auto part = out.first(std::min<std::uint64_t>(out.size(), kMaxAsked));
    const std::array<Request, 1> request = {{{offset, part.size()}}};
    // The sandbox allows the child write(2), but no other call that sends.
    const auto write = [&](const void* bytes, std::size_t count) {
      return ::write(fd_, bytes, count);
    };
    if (!send_all(std::as_bytes(std::span(request)), write) || !receive(fd_, part))
      throw Error(ErrorCode::kIo, "the process that reads the file does not answer");
    offset += part.size();
    out = out.subspan(part.size());
  }
}

void answer_asked(int fd, const ByteSource& file) {
  std::array<Request, 1> request{};
  // The child's end was closed.
  if (!receive(fd, std::as_writable_bytes(std::span(request)))) return;
  const auto [offset, bytes] = request[0];
  if (bytes > kMaxAsked || offset > file.size() || bytes > file.size() - offset) {
    throw Error(ErrorCode::kH5ReaderFailed, cat("the process that reads HDF5 asked for ", bytes,
                                                " bytes at byte ", offset, " of ", file.size()));
  }
  // If the child died meanwhile, its status says why.
  (void)send_all(read_bytes(file, offset, bytes), [&](const void* from, std::size_t count) {
    return ::send(fd, from, count, MSG_NOSIGNAL);
  });
}

}  // namespace fsdp::formats::hdf5
