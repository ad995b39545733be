// SPDX-License-Identifier: Apache-2.0
// A folder of a store, with what is known of its files.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/store/snapshot.h"
#include "formats/store/stored_source.h"

namespace fsdp::formats {

// Remembers every file that it found: the same source is returned again, of the same version.
// Thread-safe.
class StoredFolder {
 public:
  explicit StoredFolder(std::string url) : url_(std::move(url)) {}

  // Opens a file by a path of parts with names.  nullptr: there is none.
  // Throws: what stores throw.
  std::shared_ptr<const StoredSource> open(const std::string& path);
  // The names of the members, each once.
  // Throws: kUnsupported if the store cannot list and has no file that tells what the folder holds.
  std::vector<std::string> names();
  bool is_folder(const std::string& name);
  // The same as far as it is known without a request.
  bool is_known_folder(const std::string& name);
  // Everything in the folder and its subfolders, by relative path, sorted.
  // Throws: kLimitEntries (more than `most`), kLimitDepth (deeper than `levels`), kUnsupported.
  std::vector<std::string> files(std::size_t most, int levels);

 private:
  std::shared_ptr<const StoredListing> listing();

  std::string url_;
  std::mutex mutex_;
  std::shared_ptr<const StoredListing> listing_;
  std::unordered_map<std::string, std::shared_ptr<const StoredSource>> open_;
};

}  // namespace fsdp::formats
