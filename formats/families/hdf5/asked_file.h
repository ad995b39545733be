// SPDX-License-Identifier: Apache-2.0
// A file that a confined child process reads through its parent, which alone can reach the file's
// store.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats::hdf5 {

// Two ends of a connection; each process uses one.
struct Connection {
  FileDescriptor parent;
  FileDescriptor child;
};
// Throws: kIo.
Connection connect_here();

// The file as the child sees it: each read is a request to the parent.  For one thread.
class AskedFile : public ByteSource {
 public:
  // `fd`: the child's end.
  AskedFile(int fd, std::uint64_t size) : fd_(fd), size_(size) {}
  std::uint64_t size() const override { return size_; }
  // Throws: kTruncated, kIo (the connection ends).
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  int fd_;
  std::uint64_t size_;
};

// Receives one request at the parent's end and sends the bytes.  The request is not trusted: a
// range beyond the file, or more bytes than AskedFile asks for at once, is an error.
// Throws: kH5ReaderFailed (such a request); what reading throws; kIo.
void answer_asked(int fd, const ByteSource& file);

}  // namespace fsdp::formats::hdf5
