// SPDX-License-Identifier: Apache-2.0
// What a place for files that is not this machine's file system offers: an object store, a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// A file of a store, as it is at one moment.
struct StoredFile {
  std::uint64_t bytes = 0;
  // Is another one whenever the content is (a strong ETag); empty: the store names none.
  std::string version;
  // Of its last change, in nanoseconds since the epoch; 0: not known.
  std::int64_t mtime_ns = 0;
};

// What a folder of a store holds: a file, or a folder in it.
struct StoredEntry {
  std::string name;                // without the folder's and without a slash
  std::optional<StoredFile> file;  // nullopt: a folder
};

// A file that is being written by parts.  It appears whole by `complete`, or not at all: the
// destructor takes back what was sent.
class StoreUpload {
 public:
  StoreUpload() = default;
  StoreUpload(const StoreUpload&) = delete;
  StoreUpload& operator=(const StoreUpload&) = delete;
  virtual ~StoreUpload() = default;

  // Of every part but the last one, which may have fewer.
  virtual std::uint64_t part_bytes() const = 0;
  // Sends part `number`, counted from 0.  Parts may come in any order, from several threads at
  // once.  Throws: kIo.
  virtual void put(std::uint32_t number, std::span<const std::byte> bytes) = 0;
  // Makes the file appear.  `only_new`: as long as there is none of that name.  Requires: every
  // part was put.  Throws: kExists, kIo.
  virtual void complete(bool only_new) = 0;
};

// Every place is a URL, whose path is not encoded: "s3://bucket/a folder/x=1".  Thread-safe.  Every
// member blocks until the store has answered, repeats what may be repeated within the store's
// deadline, and ends in an error at the latest then; messages begin with the URL and hold no
// secret.  Throws, each: kAccess (the store refuses), kNetwork (no answer, or none that makes
// sense, by the deadline), kUsage (a URL that names no place).
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // nullopt: there is no file there.
  virtual std::optional<StoredFile> find(const std::string& url) const = 0;
  // The members of a folder, in no order; empty if there is no such folder.  nullopt: the store
  // cannot list (a server of https).  Throws: kLimitEntries (more than a million).
  virtual std::optional<std::vector<StoredEntry>> list(const std::string& url) const = 0;
  // Fills `out` from byte `offset` of `file` on, which `find` or `list` returned for `url`.
  // Throws: kChanged if it is no longer of that version or size; kNotFound.
  virtual void read(const std::string& url, const StoredFile& file, std::uint64_t offset,
                    std::span<std::byte> out) const = 0;
  // The whole of a small file with what `find` says of it, by one request.  nullopt: there is none.
  // Throws: kLimitSize if it has more than `max_bytes`.
  struct Content {
    StoredFile file;
    std::vector<std::byte> bytes;
  };
  virtual std::optional<Content> fetch(const std::string& url, std::uint64_t max_bytes) const = 0;

  // Begins a file of `bytes` bytes.  Throws: kUnsupported if the store cannot be written to.
  virtual std::unique_ptr<StoreUpload> upload(const std::string& url, std::uint64_t bytes) = 0;
  // Writes a small file by one request.  `only_new`: as long as there is none.  Throws: kExists,
  // kUnsupported.
  virtual void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) = 0;
  // Removes a file; none of that name is no error.  Throws: kUnsupported.
  virtual void remove(const std::string& url) = 0;
};

// The store of `url`; null for a path of this machine, and for a URL whose scheme no store took.
// Thread-safe.
Store* store_of(std::string_view url);
// From now on `make` gives, once, the store of the URLs that begin with `scheme` ("s3://"), if no
// store took it before.  Thread-safe.
void register_store(std::string scheme, std::unique_ptr<Store> (*make)());

}  // namespace fsdp::formats
