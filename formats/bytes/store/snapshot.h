// SPDX-License-Identifier: Apache-2.0
// Keeps the answers of stores about files and folders while a checkpoint is opened and read: each
// question is asked once, and all readers see the files of one moment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/interface.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/store.h"
#include "formats/bytes/store/stored_source.h"

namespace fsdp::formats {

// The members of a folder of a store.
struct StoredListing {
  // Sorted by name; a file and a folder may have the same name.  No name is empty, "." or "..".
  std::vector<StoredEntry> entries;
  // False: the store cannot list.  The entries are then the existing files that tell what a folder
  // holds.
  bool whole = true;

  // Returns nullptr if there is no file of that name.
  const StoredFile* file(std::string_view name) const;
  bool has_folder(std::string_view name) const;
};

// The end of messages about a folder for which there is neither a list nor a telling file.
inline constexpr std::string_view kCannotList =
    "the server cannot list folders, and the folder has none of the files that describe its "
    "content (.metadata, model.safetensors.index.json, ...)";

// Answers are kept while a session exists.  Thread-safe.
class StoreSession : NotCopied {
 public:
  StoreSession();
  ~StoreSession();
};

// Each function takes a URL without a slash at its end.  Thread-safe.  Throws: what the store
// throws.
std::shared_ptr<const StoredListing> list_stored(const std::string& url);
// nullopt: there is no file.
std::optional<StoredFile> find_stored(const std::string& url);
// Asks for all files at once.
std::vector<std::optional<StoredFile>> find_stored(const std::vector<std::string>& urls);
// Returns the bytes of a file that the store described as `file`.  Within a session all who open
// the file share one source, so bytes that were read once are not requested again.
std::shared_ptr<const File> source_of(const std::string& url, const StoredFile& file);
// Returns what is at a URL; a `text` that ends in a slash names a folder.
PlaceKind kind_in_store(const std::string& text);

}  // namespace fsdp::formats
