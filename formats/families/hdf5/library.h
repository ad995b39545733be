// SPDX-License-Identifier: Apache-2.0
// libhdf5 as the files beside this one use it: handles that close themselves, its error messages,
// and files whose bytes come from and go to an object of ours.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include <hdf5.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"

namespace fsdp::formats::hdf5 {

// Guards libhdf5, whose global state has no locks.  Must be held while libhdf5 is used, and while a
// child that will use it is forked.
std::mutex& library_mutex();

// Holds the library, started and without its messages on stderr.
class Library : NotCopied {
 public:
  // Throws: kUnsupported.
  Library();
  ~Library();

 private:
  std::unique_lock<std::mutex> lock_;
  H5E_auto2_t report_ = nullptr;
  void* report_data_ = nullptr;
};

// Throws `code` with `what` and the outermost and innermost descriptions of the last failed call,
// escaped; kH5ReaderFailed if memory ran out; if the file could not be read or written, the error
// thrown there.
[[noreturn]] void throw_library_error(ErrorCode code, const std::string& what);

// Owns an identifier of libhdf5.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close how) : id_(id), close_(how) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) (void)close_(id_);
  }
  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }
  // Closes now; returns false if that fails.
  bool close_now() { return close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  Close close_;
};

// The object that a file is read from and written to.
class DriverFile : public Interface {
 public:
  virtual std::uint64_t size() const = 0;
  // Return false on failure; may throw.  libhdf5 passes whole chunks in the caller's own buffer, so
  // the buffer's address tells chunks from structure.  (H5FD_mem_t does not: heaps of text count as
  // data too.)
  virtual bool read(std::uint64_t address, void* out, std::size_t bytes) = 0;
  virtual bool write(std::uint64_t address, const void* bytes, std::size_t count) = 0;
  virtual void resize(std::uint64_t bytes) = 0;
};

// Returns file access properties that lead to `file`, under whatever name it is opened.
// Lifetime: `file` outlives the file opened with them.
Handle access_to(DriverFile& file);

}  // namespace fsdp::formats::hdf5
