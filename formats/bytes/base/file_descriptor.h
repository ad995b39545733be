// SPDX-License-Identifier: Apache-2.0
// An open descriptor, closed with it.
#pragma once

#include <unistd.h>

#include <utility>

namespace fsdp::formats {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    other.reset();
    return *this;
  }
  ~FileDescriptor() { reset(); }
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Returns the descriptor, which the caller then must close.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace fsdp::formats
