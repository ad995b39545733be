// SPDX-License-Identifier: Apache-2.0
// The data files of a checkpoint folder: opened when needed, few at a time, and guarded against
// replacement.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// Thread-safe.
class FilePool {
 public:
  // Lifetime: `folder` outlives the pool.
  explicit FilePool(const Folder& folder) : folder_(folder) {}

  // Sets the sizes of the index's files and remembers what identifies each; a missing file gets no
  // size.  Opens many at once: each takes a while on a slow disk, and in a store that cannot list.
  // Throws: kPath, kPathEscape, kNotRegular, kIo, the errors of stores.
  void examine(std::vector<FileEntry>& files);
  // Returns file number `file` of the index.  Throws: kShardMissing; kChanged if the file is not
  // the one that was examined.
  std::shared_ptr<const File> get(std::uint32_t file);
  // Returns the same file, or null if another file had to be closed for it; that is never so in a
  // store.
  std::shared_ptr<const File> get_at_hand(std::uint32_t file);
  // Throws: kChanged if a file that `get` returned has changed.
  void check_unchanged();

 private:
  struct Known {
    std::string name;
    bool present = false;
    bool used = false;
    std::uint64_t bytes = 0;
    std::int64_t mtime_ns = 0;
    std::shared_ptr<const File> open;
  };
  std::shared_ptr<const File> reopen(Known& known);
  std::shared_ptr<const File> get_locked(std::uint32_t file);

  const Folder& folder_;
  std::mutex mutex_;
  std::vector<Known> files_;
  std::list<std::uint32_t> open_;  // most recently used first
};

}  // namespace fsdp::formats
