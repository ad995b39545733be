// SPDX-License-Identifier: Apache-2.0
// Lists everything below a folder at once, for folders with many subfolders: the steps of a run.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/base/interface.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// A second base of stores in which one answer can name the files of many folders.
class DeepListing : public Interface {
 public:
  struct Below {
    // The files by their paths from the folder, "step-4/.metadata", in the order of the answers;
    // markers of folders, too.
    std::vector<StoredEntry> files;
    bool whole = true;  // false: there are more
  };
  // Lists the files below a folder by at most `answers` requests.  Throws: as Store::list.
  virtual Below list_below(const std::string& url, std::size_t answers) const = 0;
};

// Complete listings of the folders below `url`, by their URLs.  If there are more files, only the
// folders before the last file's are complete, and only if the files are in order.
using StoredListings = std::map<std::string, std::shared_ptr<const StoredListing>, std::less<>>;
StoredListings listings_below(const std::string& url, const DeepListing::Below& below);

// Returns how many answers to request instead of listing `folders` folders one by one.  That pays
// if each answer covers four folders; 128 answers have 128,000 files, which take some 20 MB.  0:
// the folders are few and are listed one by one.
std::size_t answers_for(std::size_t folders);

}  // namespace fsdp::formats
