// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/deep_listing.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kFewFolders = 8;
constexpr std::size_t kFoldersAnAnswer = 4;
constexpr std::size_t kMostAnswers = 128;

std::string_view first_part(std::string_view path) {
  return path.substr(0, path.find('/'));
}

bool is_name(std::string_view part) {
  return !part.empty() && part != "." && part != "..";
}

}  // namespace

StoredListings listings_below(const std::string& url, const DeepListing::Below& below) {
  if (!below.whole && !std::ranges::is_sorted(below.files, {}, &StoredEntry::name)) return {};
  // The last folder may have more files than the answers name.
  const std::string_view last =
      below.whole || below.files.empty() ? "" : first_part(below.files.back().name);
  std::map<std::string, StoredListing> listings;
  std::set<std::string> folders;
  for (const StoredEntry& entry : below.files) {
    const std::string_view path = entry.name;
    const std::string_view first = first_part(path);
    if (first.size() == path.size() || (!below.whole && first == last) || !is_name(first)) continue;
    for (std::size_t slash = path.find('/'); slash != path.npos;
         slash = path.find('/', slash + 1)) {
      const std::string folder(path.substr(0, slash));
      const std::size_t end = path.find('/', slash + 1);
      std::string name(path.substr(slash + 1, end == path.npos ? end : end - slash - 1));
      // No path can name such a key.
      if (!is_name(name)) break;
      if (end == path.npos && entry.file) {
        listings[folder].entries.push_back({std::move(name), entry.file});
      } else if (folders.insert(cat(folder, "/", name)).second) {
        listings[folder].entries.push_back({std::move(name), std::nullopt});
      }
    }
  }
  StoredListings all;
  for (auto& [path, listing] : listings) {
    std::ranges::sort(listing.entries, {}, [](const StoredEntry& entry) {
      return std::pair(std::string_view(entry.name), !entry.file);
    });
    all.emplace(cat(url, "/", path), std::make_shared<StoredListing>(std::move(listing)));
  }
  return all;
}

std::size_t answers_for(std::size_t folders) {
  if (folders < kFewFolders) return 0;
  return std::min(std::max(folders / kFoldersAnAnswer, std::size_t{1}), kMostAnswers);
}

}  // namespace fsdp::formats
