// SPDX-License-Identifier: Apache-2.0
// The answers of stores to what lies where, kept while a checkpoint is opened and read: every
// question is asked once, and all readers see the files of one moment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/store/place.h"
#include "formats/bytes/store/store.h"
#include "formats/bytes/store/stored_source.h"

namespace fsdp::formats {

// The members of a folder of a store.
struct StoredListing {
  // By name; a name may be that of a file and of a folder.  No name is empty, "." or "..".
  std::vector<StoredEntry> entries;
  // False: the store cannot list.  The entries are files that tell what a folder holds, as far as
  // they are there.
  bool whole = true;

  // nullptr: there is no file of that name.
  const StoredFile* file(std::string_view name) const;
  bool has_folder(std::string_view name) const;
};

// The end of messages about a folder of which neither a list nor a telling file is there.
inline constexpr std::string_view kCannotList =
    "the server cannot list folders, and none of the files that tell what a folder holds is there "
    "(.metadata, model.safetensors.index.json, ...)";

// While one exists, answers are kept.  Thread-safe.
class StoreSession {
 public:
  StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;
  ~StoreSession();
};

// Each takes a URL without a slash at its end.  Thread-safe.  Throws: what the store throws.
std::shared_ptr<const StoredListing> list_stored(const std::string& url);
// nullopt: there is no file.
std::optional<StoredFile> find_stored(const std::string& url);
// Asks for all of them at once.
std::vector<std::optional<StoredFile>> find_stored(const std::vector<std::string>& urls);
// The bytes of a file, of which `file` is what was said.  While a session exists all who open it
// have the same source: what one of them has read, the next one need not ask for.
std::shared_ptr<const File> source_of(const std::string& url, const StoredFile& file);
// `text` may end in a slash, and is a folder's then.
PlaceKind kind_in_store(const std::string& text);
// Forgets every answer about places in the store of `url`, after something was written to it.
void forget_stored(const std::string& url);

}  // namespace fsdp::formats
