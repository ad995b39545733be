// SPDX-License-Identifier: Apache-2.0
// A file that is being written, by position, and its size and checksum once it is complete.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/files/local_file.h"

namespace fsdp::formats {

// One file being written: here a file of this machine; joined.h and stored.h have others.
// Thread-safe: `write_at`, `put_at`, `put_direct`, `add_crc`.
class OutputFile {
 public:
  // `name` is for messages.
  // `synced`: the file will be synced; writeback starts while more is being written.
  // `summed`: its checksum will be needed; `fd` is open for reading as well.
  OutputFile(FileDescriptor fd, std::string name, bool synced = false, bool summed = false)
      : fd_(std::move(fd)), name_(std::move(name)), synced_(synced), summed_(summed) {}
  virtual ~OutputFile() = default;
  // Makes the file `bytes` long and reserves the disk space at once, so that a full disk is an
  // early error.
  // Throws: kNoSpace saying how much is needed and free, kIo.
  virtual void reserve(std::uint64_t bytes);
  // `crc`: the CRC-32 of the bytes, if the caller has it.
  // Throws: kNoSpace, kIo; what PartUpload::wrote throws.
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes,
                        std::optional<std::uint32_t> crc = std::nullopt);
  // Like write_at, for elements of tensors: the caller passes the checksum to add_crc, and the
  // bytes need not be kept for reading.
  void put_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Like put_at: writes whole disk blocks past the page cache through `direct`, from open_direct,
  // and the rest at both ends through the cache.
  // Requires: `bytes` has the same offset from a multiple of kDiskBlockBytes in memory as in the
  // file.
  void put_direct(const FileDescriptor& direct, std::uint64_t offset,
                  std::span<const std::byte> bytes);
  void add_crc(std::uint64_t offset, std::uint64_t bytes, std::uint32_t crc);
  // Returns the unit in which the file system likes to write: the stripes of Lustre, otherwise a
  // page or so; 0 if it is not known.
  std::uint64_t stripe_bytes() const;
  // Returns whether the file is sent in parts that wait on this machine until they are whole: bytes
  // that fill gaps should come soon.
  virtual bool sent_by_parts() const { return false; }
  // Returns whether the file's checksum is needed.
  bool summed() const { return summed_; }
  // See open_direct in direct_io.h; none (-1) if the file will not be synced.
  FileDescriptor open_direct();
  // Writes what was put so far to the disk.  Does nothing if nothing was put, or if the file is
  // finished.
  // Throws: kIo, kNoSpace; the file cannot be finished then.
  void sync();
  // Calls fsync and close, and checks both.  A failed fsync is final: the kernel may have dropped
  // data that it could not write, and a second fsync would report success.  Finishing a finished
  // file does nothing.
  // A checksum that is needed is combined from the checksums of the parts written; parts without
  // one, such as padding that was never written, are read.
  // Throws: kIo, kNoSpace.
  void finish(bool sync);
  // Return size and checksum.  Requires: the file is summed and finished.
  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t crc() const { return crc_; }
  const std::string& name() const { return name_; }
  // Returns the name of a file in a folder, "b" or "a/b"; empty for a file that is an output by
  // itself.
  const std::string& member() const { return member_; }
  void set_member(std::string member) { member_ = std::move(member); }

 protected:
  // Returns the descriptor to write to.
  virtual int descriptor() { return fd_.get(); }
  // Gives the file that length, and the disk space if it stays on this machine.  Returns 0, or -1
  // with errno.
  virtual int take_space(off_t bytes);
  // Called when these bytes were written.  `kept`: they may be read again before the output is
  // committed.
  virtual void wrote(std::uint64_t offset, std::uint64_t bytes, bool kept);
  // Called when everything is written: syncs and closes.
  virtual void close(FileDescriptor fd, bool sync);

  FileDescriptor fd_;
  std::mutex mutex_;  // of the checksums, and of opening

 private:
  void put(std::uint64_t offset, std::span<const std::byte> bytes, bool kept);
  void sum_up();
  std::uint32_t read_crc(std::uint64_t begin, std::uint64_t end) const;

  std::string name_;
  std::string member_;
  bool synced_;
  bool summed_;
  CrcLedger written_;
  std::uint64_t bytes_ = 0;
  std::uint32_t crc_ = 0;
  std::atomic<std::uint64_t> since_writeback_{0};  // bytes written since the last start
  bool failed_ = false;
};

}  // namespace fsdp::formats
