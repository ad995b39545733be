// SPDX-License-Identifier: Apache-2.0
// The interface to a place for files outside the local file system: an object store, a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// A file of a store at one moment.
struct StoredFile {
  std::uint64_t bytes = 0;
  // Changes whenever the content changes (a strong ETag); empty: the store has no versions.
  std::string version;
  // Time of the last change, in nanoseconds since the epoch; 0: unknown.
  std::int64_t mtime_ns = 0;
};

// A member of a folder of a store: a file or a folder.
struct StoredEntry {
  std::string name;                // without the folder's and without a slash
  std::optional<StoredFile> file;  // nullopt: a folder
};

// A file that is written in parts.  It appears as a whole by `complete`; otherwise the destructor
// removes the parts that were sent.
class StoreUpload : public Interface {
 public:
  // Returns the size of every part but the last one, which may be smaller.
  virtual std::uint64_t part_bytes() const = 0;
  // Sends part `number`, counted from 0.  Parts may come in any order, from several threads at
  // once.  Throws: kIo.
  virtual void put(std::uint32_t number, std::span<const std::byte> bytes) = 0;
  // Makes the file appear.  `only_new`: only if no file has that name.  Requires: every part was
  // put.  Throws: kExists, kIo.
  virtual void complete(bool only_new) = 0;
};

// Places are URLs whose paths are not encoded: "s3://bucket/a folder/x=1".  Thread-safe.  Every
// member blocks until the store has answered.  It repeats what may be repeated, and ends in an
// error at the store's deadline.  Messages begin with the URL and hold no secret.  Each member
// throws: kAccess (the store refuses), kNetwork (no answer, or no valid one, by the deadline),
// kUsage (a URL that names no place).
class Store : public Interface {
 public:
  // Returns nullopt if there is no such file.
  virtual std::optional<StoredFile> find(const std::string& url) const = 0;
  // Returns the members of a folder, unordered; empty if there is no such folder.  nullopt: the
  // store cannot list (a server of https).  Throws: kLimitEntries (more than a million).
  virtual std::optional<std::vector<StoredEntry>> list(const std::string& url) const = 0;
  // Fills `out` from byte `offset` of `file` on, which `find` or `list` returned for `url`.
  // Throws: kChanged if the file has another version or size now; kNotFound.
  virtual void read(const std::string& url, const StoredFile& file, std::uint64_t offset,
                    std::span<std::byte> out) const = 0;
  // A small file with what `find` says of it, read by one request.  nullopt: there is no file.
  // Throws: kLimitSize if the file has more than `max_bytes`.
  struct Content {
    StoredFile file;
    std::vector<std::byte> bytes;
  };
  virtual std::optional<Content> fetch(const std::string& url, std::uint64_t max_bytes) const = 0;

  // Begins a file of `bytes` bytes.  Throws: kUnsupported if the store cannot be written to.
  virtual std::unique_ptr<StoreUpload> upload(const std::string& url, std::uint64_t bytes) = 0;
  // Writes a small file by one request.  `only_new`: only if no file has that name.  Throws:
  // kExists, kUnsupported.
  virtual void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) = 0;
  // Removes a file; a missing file is not an error.  Throws: kUnsupported.
  virtual void remove(const std::string& url) = 0;
};

// Returns the store of `url`; null for a local path, and for a URL whose scheme is not registered.
// Thread-safe.
Store* store_of(std::string_view url);
// Registers a store for URLs that begin with `scheme` ("s3://"), unless there is one.  `make` is
// called once at most.  Thread-safe.
void register_store(std::string scheme, std::unique_ptr<Store> (*make)());

// A store answered neither the request that makes a file appear, nor the check that followed.
// Thrown by StoreUpload::complete and Store::put.
class UncertainError : public Error {
 public:
  explicit UncertainError(const std::string& message) : Error(ErrorCode::kNetwork, message) {}
};

}  // namespace fsdp::formats
