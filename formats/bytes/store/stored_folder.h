// SPDX-License-Identifier: Apache-2.0
// A folder of a store, with what is known of its files.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/bytes/store/file.h"
#include "formats/bytes/store/snapshot.h"

namespace fsdp::formats {

// Remembers every file that it found, and returns the same one, of the same version, again.
class StoredFolder : public Folder {
 public:
  // `url`: without a slash at its end.  A folder without members is empty.
  explicit StoredFolder(std::string url) : Folder(url), url_(std::move(url)) {}
  bool is_folder(const std::string& name) const override;
  bool read_by_requests() const override { return true; }

 private:
  std::shared_ptr<const File> find(const std::string& relative_path) const override;
  std::vector<std::string> names() const override;
  void each_file(const std::function<void(std::string path)>& take) const override;
  std::shared_ptr<const StoredListing> listing() const;
  std::shared_ptr<const File> open(const std::string& path) const;

  std::string url_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const StoredListing> listing_;
  mutable std::unordered_map<std::string, std::shared_ptr<const File>> open_;
};

}  // namespace fsdp::formats
