// SPDX-License-Identifier: Apache-2.0
// Everything below a folder at once, for folders with many others in them: the steps of a run.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/store/snapshot.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// A store of which one answer can name the files of many folders derives from this too.
class DeepListing {
 public:
  DeepListing() = default;
  DeepListing(const DeepListing&) = delete;
  DeepListing& operator=(const DeepListing&) = delete;
  virtual ~DeepListing() = default;

  struct Below {
    // By their paths from the folder, "step-4/.metadata", in the order of the answers; marks of
    // folders, too.
    std::vector<StoredEntry> files;
    bool whole = true;  // false: there are more
  };
  // The files below a folder, by at most `answers` requests.  Throws: as Store::list.
  virtual Below list_below(const std::string& url, std::size_t answers) const = 0;
};

// The listings of the folders below `url` of which nothing can be missing, by their URLs: if there
// are more files, those before the last one's, if the files come in order.
using StoredListings = std::map<std::string, std::shared_ptr<const StoredListing>, std::less<>>;
StoredListings listings_below(const std::string& url, const DeepListing::Below& below);

// How many answers to ask for in place of a list for each of so many folders: it is worth while if
// each answer tells of four of them, and 128 have 128,000 files, which take some 20 MB.  0: few
// folders are listed one by one.
std::size_t answers_for(std::size_t folders);

}  // namespace fsdp::formats
