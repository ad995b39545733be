// SPDX-License-Identifier: Apache-2.0
#include "formats/store/stored_folder.h"

#include <algorithm>
#include <functional>

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {

std::shared_ptr<const StoredListing> StoredFolder::listing() {
  const std::lock_guard lock(mutex_);
  if (!listing_) listing_ = list_stored(url_);
  return listing_;
}

std::shared_ptr<const StoredSource> StoredFolder::open(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(path);
    if (at != open_.end()) return at->second;
  }
  const std::string url = url_ + "/" + path;
  std::optional<StoredFile> file;
  bool known = false;
  if (path.find('/') == std::string::npos) {
    const std::lock_guard lock(mutex_);
    if (listing_) {
      const StoredFile* const listed = listing_->file(path);
      if (listed != nullptr) file = *listed;
      known = file || listing_->whole;
    }
  }
  if (!known) file = find_stored(url);
  if (!file) return nullptr;
  auto source = source_of(url, *file);
  const std::lock_guard lock(mutex_);
  return open_.try_emplace(path, std::move(source)).first->second;
}

std::vector<std::string> StoredFolder::names() {
  const auto listed = listing();
  if (!listed->whole && listed->entries.empty()) {
    throw Error(ErrorCode::kUnsupported, cat(escape(url_), ": ", kCannotList));
  }
  std::vector<std::string> names;
  names.reserve(listed->entries.size());
  for (const StoredEntry& entry : listed->entries) {
    if (names.empty() || names.back() != entry.name) names.push_back(entry.name);
  }
  return names;
}

bool StoredFolder::is_folder(const std::string& name) {
  return listing()->has_folder(name);
}

bool StoredFolder::is_known_folder(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return listing_ && listing_->has_folder(name);
}

std::vector<std::string> StoredFolder::files(std::size_t most, int levels) {
  std::vector<std::string> all;
  const std::function<void(const StoredListing&, const std::string&, int)> walk =
      [&](const StoredListing& folder, const std::string& prefix, int depth) {
        const std::string shown = escape(url_ + "/" + prefix);
        if (depth > levels) {
          throw Error(ErrorCode::kLimitDepth,
                      cat(shown, ": lies more than ", levels, " folders deep"));
        }
        if (!folder.whole) {
          throw Error(ErrorCode::kUnsupported,
                      shown + ": the server cannot list folders, and all files are wanted");
        }
        for (const StoredEntry& entry : folder.entries) {
          if (!entry.file) {
            const std::string inner = prefix + entry.name;
            walk(*list_stored(url_ + "/" + inner), inner + "/", depth + 1);
            continue;
          }
          if (all.size() == most) {
            throw Error(ErrorCode::kLimitEntries,
                        cat(escape(url_), ": holds more than ", most, " files"));
          }
          all.push_back(prefix + entry.name);
        }
      };
  walk(*listing(), "", 0);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace fsdp::formats
