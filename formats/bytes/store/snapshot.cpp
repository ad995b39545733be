// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/snapshot.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/store/deep_listing.h"
#include "formats/bytes/store/telling_files.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kAtOnce = 8;

// Endings of file names in checkpoints; names of folders seldom have them.
constexpr std::array<std::string_view, 14> kFileEnds = {
    ".pt",   ".pth", ".bin",  ".ckpt", ".safetensors", ".h5",  ".hdf5",
    ".json", ".npy", ".toml", ".txt",  ".distcp",      ".pkl", ".metadata"};

// What all sessions share.
struct Known {
  std::mutex mutex;
  int sessions = 0;
  std::map<std::string, std::shared_ptr<const StoredListing>, std::less<>> listings;
  std::map<std::string, std::optional<StoredFile>, std::less<>> files;
  // By URL, version, size and time, since a store may have no versions.
  std::map<std::tuple<std::string, std::string, std::uint64_t, std::int64_t>,
           std::shared_ptr<const File>>
      sources;
  std::map<std::string, std::size_t, std::less<>> inner_lists;  // lists made, by parent folder
};

Known& known() {
  static Known all;
  return all;
}

Store& store_at(const std::string& url) {
  Store* const store = store_of(url);
  if (store == nullptr)
    throw Error(ErrorCode::kUsage, escape(url) + ": URLs of this kind cannot be read");
  return *store;
}

bool is_root(const std::string& url) {
  return url.find('/', url.find("://") + 3) == std::string::npos;
}

std::pair<std::string, std::string> folder_and_name(const std::string& url) {
  const std::size_t slash = url.rfind('/');
  return {url.substr(0, slash), url.substr(slash + 1)};
}

std::vector<StoredEntry> look_for_telling(const Store& store, const std::string& url) {
  std::array<std::optional<StoredFile>, kTellingFiles.size() + kModelCompanions.size()> found;
  const auto name = [](std::size_t i) {
    return i < kTellingFiles.size() ? kTellingFiles[i] : kModelCompanions[i - kTellingFiles.size()];
  };
  run_each(found.size(), kAtOnce,
           [&](std::size_t i) { found[i] = store.find(cat(url, '/', name(i))); });
  std::vector<StoredEntry> entries;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) entries.push_back({std::string(name(i)), std::move(found[i])});
  }
  return entries;
}

std::shared_ptr<const StoredListing> known_listing(const std::string& url) {
  const std::lock_guard lock(known().mutex);
  const auto at = known().listings.find(url);
  return at == known().listings.end() ? nullptr : at->second;
}

// Lists everything below a folder with many subfolders once a second subfolder is listed.
void list_many_at_once(const std::string& url) {
  if (is_root(url)) return;
  const std::string folder = folder_and_name(url).first;
  std::size_t folders = 0;
  {
    const std::lock_guard lock(known().mutex);
    const auto above = known().listings.find(folder);
    if (known().sessions == 0 || above == known().listings.end() || !above->second->whole) return;
    // The first subfolder may be the only one of interest.
    if (++known().inner_lists[folder] != 2) return;
    const auto& entries = above->second->entries;
    folders = static_cast<std::size_t>(
        std::ranges::count_if(entries, [](const StoredEntry& entry) { return !entry.file; }));
  }
  const auto* const store = dynamic_cast<const DeepListing*>(&store_at(url));
  const std::size_t answers = answers_for(folders);
  if (store == nullptr || answers == 0) return;
  auto listings = listings_below(folder, store->list_below(folder, answers));
  const std::lock_guard lock(known().mutex);
  if (known().sessions != 0) known().listings.merge(listings);
}

}  // namespace

const StoredFile* StoredListing::file(std::string_view name) const {
  auto at = std::ranges::lower_bound(entries, name, {}, &StoredEntry::name);
  for (; at != entries.end() && at->name == name; ++at) {
    if (at->file) return &*at->file;
  }
  return nullptr;
}

bool StoredListing::has_folder(std::string_view name) const {
  return std::ranges::any_of(std::ranges::equal_range(entries, name, {}, &StoredEntry::name),
                             [](const StoredEntry& entry) { return !entry.file; });
}

StoreSession::StoreSession() {
  const std::lock_guard lock(known().mutex);
  ++known().sessions;
}

StoreSession::~StoreSession() {
  const std::lock_guard lock(known().mutex);
  if (--known().sessions != 0) return;
  known().listings.clear();
  known().files.clear();
  known().sources.clear();
  known().inner_lists.clear();
}

std::shared_ptr<const StoredListing> list_stored(const std::string& url) {
  if (auto listing = known_listing(url)) return listing;
  list_many_at_once(url);
  if (auto listing = known_listing(url)) return listing;
  const Store& store = store_at(url);
  auto listing = std::make_shared<StoredListing>();
  if (auto entries = store.list(url)) {
    listing->entries = *std::move(entries);
  } else {
    listing->whole = false;
    listing->entries = look_for_telling(store, url);
  }
  // No path can name such a key.
  std::erase_if(listing->entries, [](const StoredEntry& entry) {
    return entry.name.empty() || entry.name == "." || entry.name == ".." ||
           entry.name.find('/') != std::string::npos;
  });
  std::ranges::sort(listing->entries, [](const StoredEntry& a, const StoredEntry& b) {
    return std::tuple(std::string_view(a.name), !a.file) <
           std::tuple(std::string_view(b.name), !b.file);
  });
  const std::lock_guard lock(known().mutex);
  if (known().sessions != 0) known().listings.try_emplace(url, listing);
  return listing;
}

std::optional<StoredFile> find_stored(const std::string& url) {
  if (is_root(url)) return std::nullopt;
  {
    const std::lock_guard lock(known().mutex);
    const auto at = known().files.find(url);
    if (at != known().files.end()) return at->second;
  }
  const auto [folder, name] = folder_and_name(url);
  if (const auto listing = known_listing(folder)) {
    const StoredFile* const file = listing->file(name);
    if (file != nullptr) return *file;
    if (listing->whole) return std::nullopt;
  }
  std::optional<StoredFile> file = store_at(url).find(url);
  const std::lock_guard lock(known().mutex);
  if (known().sessions != 0) known().files.try_emplace(url, file);
  return file;
}

std::vector<std::optional<StoredFile>> find_stored(const std::vector<std::string>& urls) {
  std::vector<std::optional<StoredFile>> found(urls.size());
  run_each(urls.size(), kAtOnce, [&](std::size_t i) { found[i] = find_stored(urls[i]); });
  return found;
}

std::shared_ptr<const File> source_of(const std::string& url, const StoredFile& file) {
  const auto make = [&] { return std::make_shared<StoredSource>(store_at(url), url, file); };
  const std::lock_guard lock(known().mutex);
  if (known().sessions == 0) return make();
  auto& source = known().sources[{url, file.version, file.bytes, file.mtime_ns}];
  if (!source) source = make();
  return source;
}

PlaceKind kind_in_store(const std::string& text) {
  const std::string url = url_of(text);
  const auto listed = [&] {
    return list_stored(url)->entries.empty() ? PlaceKind::kNothing : PlaceKind::kFolder;
  };
  if (url != text || is_root(url)) return listed();
  const auto [folder, name] = folder_and_name(url);
  const auto above = known_listing(folder);
  if (above && above->whole) {
    if (above->file(name) != nullptr) return PlaceKind::kFile;
    return above->has_folder(name) ? PlaceKind::kFolder : PlaceKind::kNothing;
  }
  const bool named_like_a_file =
      std::ranges::any_of(kFileEnds, [&](std::string_view end) { return name.ends_with(end); });
  if (named_like_a_file) return find_stored(url) ? PlaceKind::kFile : listed();
  const PlaceKind kind = listed();
  return kind == PlaceKind::kNothing && find_stored(url) ? PlaceKind::kFile : kind;
}

}  // namespace fsdp::formats
