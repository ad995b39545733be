// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/stored_folder.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {

std::shared_ptr<const StoredListing> StoredFolder::listing() const {
  const std::lock_guard lock(mutex_);
  if (!listing_) listing_ = list_stored(url_);
  return listing_;
}

std::shared_ptr<const File> StoredFolder::open(const std::string& path) const {
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
  std::shared_ptr<const File> source = source_of(url, *file);
  const std::lock_guard lock(mutex_);
  return open_.try_emplace(path, std::move(source)).first->second;
}

// Checks each part of the path, since a key may be any text.
std::shared_ptr<const File> StoredFolder::find(const std::string& path) const {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (part == ".." || (part.empty() && begin == 0))
      throw refusal(ErrorCode::kPathEscape, path, "leads outside the folder");
    if (part.empty() || part == ".")
      throw refusal(ErrorCode::kPath, path, "has a part without a name");
    begin = end + 1;
  }
  if (auto file = open(path)) return file;
  // Uses only what is known without a request.
  const std::lock_guard lock(mutex_);
  if (listing_ && listing_->has_folder(path)) throw refusal(ErrorCode::kPath, path, "is a folder");
  return nullptr;
}

std::vector<std::string> StoredFolder::names() const {
  const auto listed = listing();
  if (!listed->whole && listed->entries.empty())
    throw Error(ErrorCode::kUnsupported, escape(url_), ": ", kCannotList);
  std::vector<std::string> names;
  names.reserve(listed->entries.size());
  for (const StoredEntry& entry : listed->entries) {
    if (names.empty() || names.back() != entry.name) names.push_back(entry.name);
  }
  return names;
}

bool StoredFolder::is_folder(const std::string& name) const {
  return listing()->has_folder(name);
}

void StoredFolder::each_file(const std::function<void(std::string path)>& take) const {
  const std::function<void(const StoredListing&, const std::string&, int)> walk =
      [&](const StoredListing& folder, const std::string& prefix, int depth) {
        check_depth(prefix, depth);
        if (!folder.whole) {
          throw Error(ErrorCode::kUnsupported,
                      escape(url_ + "/" + prefix) +
                          ": the server cannot list folders, but a list of all files is needed");
        }
        for (const StoredEntry& entry : folder.entries) {
          const std::string inner = prefix + entry.name;
          if (entry.file) {
            take(inner);
          } else {
            walk(*list_stored(url_ + "/" + inner), inner + "/", depth + 1);
          }
        }
      };
  walk(*listing(), "", 0);
}

}  // namespace fsdp::formats
