// SPDX-License-Identifier: Apache-2.0
// A store of files that is a local folder behind a link of chosen bandwidth and latency; counts
// requests and injects faults.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/store/store.h"

namespace fsdp::test {

enum class SimRequest { kFind, kList, kRead, kFetch, kUpload, kPart, kComplete, kPut, kRemove };

// How the store behaves; may be changed between requests.
struct SimSettings {
  std::filesystem::path root;  // "sim://a/b" is `root`/a/b
  std::chrono::microseconds latency{0};
  std::uint64_t bytes_per_second = 0;  // of the link, which all requests share; 0: no limit
  bool lists = true;                   // false: as an https server
  bool versions = true;                // false: files have no version
  bool times = true;                   // false: files have no time
  std::uint64_t part_bytes = 5U << 20U;
  // Called before a request is answered; an error that it returns fails the request.  Thread-safe.
  std::function<std::optional<ErrorCode>(SimRequest, const std::string& url)> fault;
};

// Thread-safe.  Versions change with the time, the size and the identity of the file in the folder.
class SimStore : public formats::Store {
 public:
  explicit SimStore(SimSettings settings) : settings_(std::move(settings)) {}

  std::optional<formats::StoredFile> find(const std::string& url) const override;
  std::optional<std::vector<formats::StoredEntry>> list(const std::string& url) const override;
  void read(const std::string& url, const formats::StoredFile& file, std::uint64_t offset,
            std::span<std::byte> out) const override;
  std::optional<Content> fetch(const std::string& url, std::uint64_t max_bytes) const override;
  std::unique_ptr<formats::StoreUpload> upload(const std::string& url,
                                               std::uint64_t bytes) override;
  void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) override;
  void remove(const std::string& url) override;

  // Applies from now on.
  void set(SimSettings settings);
  SimSettings settings() const;
  // Requests since the last call, the failed ones too, in the order of their beginning.
  std::vector<std::pair<SimRequest, std::string>> take_requests();
  std::size_t count(SimRequest request) const;
  // The most requests that were under way at once.
  std::size_t most_at_once() const { return most_at_once_; }

 private:
  friend class SimUpload;
  class Turn;
  std::filesystem::path path_of(const std::string& url) const;
  void carry(std::uint64_t bytes) const;
  void publish(const std::string& url, std::span<const std::byte> bytes, bool only_new);

  mutable std::mutex mutex_;
  SimSettings settings_;
  mutable std::vector<std::pair<SimRequest, std::string>> requests_;
  mutable std::chrono::steady_clock::time_point link_free_;
  mutable std::atomic<std::size_t> at_once_ = 0;
  mutable std::atomic<std::size_t> most_at_once_ = 0;
};

// The store of the URLs that begin with "sim://", registered by the first call, with the settings
// of the last one.
SimStore& sim_store(SimSettings settings);

}  // namespace fsdp::test
