// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::test {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::StoredEntry;
using formats::StoredFile;
using formats::StoreUpload;

constexpr std::string_view kScheme = "sim://";

std::optional<StoredFile> file_at(const fs::path& path, const SimSettings& settings) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  StoredFile file;
  file.bytes = static_cast<std::uint64_t>(info.st_size);
  const std::int64_t time =
      std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (settings.times) file.mtime_ns = time;
  if (settings.versions) file.version = cat('"', info.st_ino, '-', time, '-', info.st_size, '"');
  return file;
}

std::vector<std::byte> content_of(const fs::path& path, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
  content.resize(static_cast<std::size_t>(in.gcount()));
  return content;
}

}  // namespace

// One request, from its beginning to its end.
class SimStore::Turn {
 public:
  Turn(const SimStore& store, SimRequest request, const std::string& url) : store_(store) {
    {
      const std::lock_guard lock(store.mutex_);
      store.requests_.emplace_back(request, url);
      settings_ = store.settings_;
    }
    const std::size_t now = ++store.at_once_;
    std::size_t most = store.most_at_once_;
    while (now > most && !store.most_at_once_.compare_exchange_weak(most, now)) {
    }
    std::this_thread::sleep_for(settings_.latency);
    if (!settings_.fault) return;
    if (const auto code = settings_.fault(request, url)) {
      --store.at_once_;
      throw Error(*code, url + ": the store was told to fail");
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { --store_.at_once_; }
  const SimSettings& settings() const { return settings_; }

 private:
  const SimStore& store_;
  SimSettings settings_;
};

// Keeps the parts until they are complete.
class SimUpload : public StoreUpload {
 public:
  SimUpload(SimStore& store, std::string url, std::uint64_t bytes, std::uint64_t part_bytes)
      : store_(store), url_(std::move(url)), bytes_(bytes), part_bytes_(part_bytes) {}
  std::uint64_t part_bytes() const override { return part_bytes_; }

  void put(std::uint32_t number, std::span<const std::byte> bytes) override {
    const SimStore::Turn turn(store_, SimRequest::kPart, url_);
    store_.carry(bytes.size());
    const std::lock_guard lock(mutex_);
    parts_[number].assign(bytes.begin(), bytes.end());
  }

  void complete(bool only_new) override {
    const SimStore::Turn turn(store_, SimRequest::kComplete, url_);
    std::vector<std::byte> all;
    std::uint32_t next = 0;
    for (const auto& [number, part] : parts_) {
      const bool last = next + 1 == parts_.size();
      if (number != next++ || (!last && part.size() != part_bytes_))
        throw Error(ErrorCode::kIo, cat(url_, ": part ", number, " is out of order or short"));
      all.insert(all.end(), part.begin(), part.end());
    }
    if (all.size() != bytes_)
      throw Error(ErrorCode::kIo, cat(url_, ": has ", all.size(), " bytes, expected ", bytes_));
    store_.publish(url_, all, only_new);
  }

 private:
  SimStore& store_;
  std::string url_;
  std::uint64_t bytes_;
  std::uint64_t part_bytes_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::vector<std::byte>> parts_;
};

fs::path SimStore::path_of(const std::string& url) const {
  std::string_view rest = url;
  if (!rest.starts_with(kScheme) || rest.size() == kScheme.size())
    throw Error(ErrorCode::kUsage, url + ": names no place");
  rest.remove_prefix(kScheme.size());
  const std::lock_guard lock(mutex_);
  return settings_.root / fs::path(rest);
}

void SimStore::carry(std::uint64_t bytes) const {
  std::chrono::steady_clock::time_point arrives;
  {
    const std::lock_guard lock(mutex_);
    if (settings_.bytes_per_second == 0) return;
    link_free_ =
        std::max(link_free_, std::chrono::steady_clock::now()) +
        std::chrono::nanoseconds(static_cast<std::int64_t>(
            1e9 * static_cast<double>(bytes) / static_cast<double>(settings_.bytes_per_second)));
    arrives = link_free_;
  }
  std::this_thread::sleep_until(arrives);
}

std::optional<StoredFile> SimStore::find(const std::string& url) const {
  const Turn turn(*this, SimRequest::kFind, url);
  if (url.ends_with('/')) return std::nullopt;
  return file_at(path_of(url), turn.settings());
}

std::optional<std::vector<StoredEntry>> SimStore::list(const std::string& url) const {
  const Turn turn(*this, SimRequest::kList, url);
  if (!turn.settings().lists) return std::nullopt;
  std::vector<StoredEntry> entries;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(path_of(url), none)) {
    std::optional<StoredFile> file = file_at(entry.path(), turn.settings());
    if (file || entry.is_directory())
      entries.push_back({entry.path().filename().string(), std::move(file)});
  }
  return entries;
}

void SimStore::read(const std::string& url, const StoredFile& file, std::uint64_t offset,
                    std::span<std::byte> out) const {
  const Turn turn(*this, SimRequest::kRead, url);
  const fs::path path = path_of(url);
  const std::optional<StoredFile> now = file_at(path, turn.settings());
  if (!now) throw Error(ErrorCode::kNotFound, url + ": no such file");
  if (now->bytes != file.bytes || now->version != file.version)
    throw Error(ErrorCode::kChanged, url + ": was replaced while it was being read");
  const std::vector<std::byte> content = content_of(path, offset, out.size());
  if (content.size() != out.size())
    throw Error(ErrorCode::kNetwork, cat(url, ": ends at byte ", offset + content.size()));
  carry(out.size());
  std::copy(content.begin(), content.end(), out.begin());
}

std::optional<formats::Store::Content> SimStore::fetch(const std::string& url,
                                                       std::uint64_t max_bytes) const {
  const Turn turn(*this, SimRequest::kFetch, url);
  const fs::path path = path_of(url);
  std::optional<StoredFile> file = file_at(path, turn.settings());
  if (!file) return std::nullopt;
  if (file->bytes > max_bytes) {
    throw Error(ErrorCode::kLimitSize,
                cat(url, ": has ", file->bytes, " bytes, at most ", max_bytes));
  }
  carry(file->bytes);
  const std::uint64_t bytes = file->bytes;
  return Content{std::move(*file), content_of(path, 0, bytes)};
}

std::unique_ptr<StoreUpload> SimStore::upload(const std::string& url, std::uint64_t bytes) {
  const Turn turn(*this, SimRequest::kUpload, url);
  return std::make_unique<SimUpload>(*this, url, bytes, turn.settings().part_bytes);
}

void SimStore::put(const std::string& url, std::span<const std::byte> bytes, bool only_new) {
  const Turn turn(*this, SimRequest::kPut, url);
  carry(bytes.size());
  publish(url, bytes, only_new);
}

void SimStore::publish(const std::string& url, std::span<const std::byte> bytes, bool only_new) {
  const fs::path path = path_of(url);
  fs::create_directories(path.parent_path());
  const fs::path temporary = path.parent_path() / cat(".sim-", ::gettid());
  {
    std::ofstream out(temporary, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw Error(ErrorCode::kIo, url + ": cannot be written");
  }
  if (only_new) {
    // Fails if there is one: two writers cannot both succeed.
    const bool made = ::link(temporary.c_str(), path.c_str()) == 0;
    fs::remove(temporary);
    if (!made) throw Error(ErrorCode::kExists, url + ": exists");
  } else {
    fs::rename(temporary, path);
  }
}

void SimStore::remove(const std::string& url) {
  const Turn turn(*this, SimRequest::kRemove, url);
  std::error_code ignored;
  const fs::path path = path_of(url);
  fs::remove(path, ignored);
  // A store has no empty folders.
  fs::path folder = path.parent_path();
  while (folder != settings().root && fs::remove(folder, ignored)) folder = folder.parent_path();
}

void SimStore::set(SimSettings settings) {
  const std::lock_guard lock(mutex_);
  settings_ = std::move(settings);
}

SimSettings SimStore::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

std::vector<std::pair<SimRequest, std::string>> SimStore::take_requests() {
  const std::lock_guard lock(mutex_);
  most_at_once_ = 0;
  return std::exchange(requests_, {});
}

std::size_t SimStore::count(SimRequest request) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(requests_.begin(), requests_.end(),
                                                [&](const auto& r) { return r.first == request; }));
}

SimStore& sim_store(SimSettings settings) {
  static SimStore* store = nullptr;
  if (store == nullptr) {
    formats::register_store(std::string(kScheme), [] {
      auto made = std::make_unique<SimStore>(SimSettings{});
      store = made.get();
      return std::unique_ptr<formats::Store>(std::move(made));
    });
    formats::store_of(kScheme);
  }
  store->set(std::move(settings));
  store->take_requests();
  return *store;
}

}  // namespace fsdp::test
