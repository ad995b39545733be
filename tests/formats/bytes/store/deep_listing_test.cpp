// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/deep_listing.h"

#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::Key;
using testing::UnorderedElementsAre;

std::vector<std::string> names_of(const StoredListing& listing) {
  std::vector<std::string> names;
  for (const StoredEntry& entry : listing.entries)
    names.push_back(entry.name + (entry.file ? "" : "/"));
  return names;
}

DeepListing::Below below(const std::vector<std::string>& paths, bool whole) {
  DeepListing::Below found{{}, whole};
  for (const std::string& path : paths) {
    const bool mark = path.ends_with('/');
    found.files.push_back({path.substr(0, path.size() - (mark ? 1 : 0)),
                           mark ? std::nullopt : std::optional(StoredFile{1, path, 2})});
  }
  return found;
}

TEST(DeepListing, TellsOfEveryFolder) {
  const auto listings = listings_below(
      "s3://b/run", below({"1/.metadata", "1/a/x", "1/a/y", "1/empty/", "2/z", "file"}, true));
  ASSERT_THAT(listings,
              ElementsAre(Key("s3://b/run/1"), Key("s3://b/run/1/a"), Key("s3://b/run/2")));
  EXPECT_THAT(names_of(*listings.at("s3://b/run/1")), ElementsAre(".metadata", "a/", "empty/"));
  EXPECT_THAT(names_of(*listings.at("s3://b/run/1/a")), ElementsAre("x", "y"));
  EXPECT_TRUE(listings.at("s3://b/run/2")->whole);
  EXPECT_EQ(listings.at("s3://b/run/2")->file("z")->version, "2/z");
}

TEST(DeepListing, LeavesOutWhatMayGoOn) {
  EXPECT_THAT(listings_below("u", below({"1/a", "10/a", "2/a", "2/b"}, false)),
              ElementsAre(Key("u/1"), Key("u/10")));
  // Without an order nothing is known to be whole.
  EXPECT_TRUE(listings_below("u", below({"1/a", "2/a", "10/a"}, false)).empty());
  EXPECT_EQ(listings_below("u", below({"1/a", "2/a", "10/a"}, true)).size(), 3U);
  EXPECT_TRUE(listings_below("u", below({}, false)).empty());
}

TEST(DeepListing, LeavesOutNamesThatNoPathHas) {
  const auto listings = listings_below(
      "u", below({"/a", "1//x", "1/../x", "1/./x", "1/b/../c", "1/ok", "./x"}, true));
  ASSERT_THAT(listings, ElementsAre(Key("u/1")));
  EXPECT_THAT(names_of(*listings.at("u/1")), ElementsAre("b/", "ok"));
}

TEST(DeepListing, IsWorthWhileForManyFolders) {
  EXPECT_EQ(answers_for(0), 0U);
  EXPECT_EQ(answers_for(7), 0U);
  EXPECT_EQ(answers_for(8), 2U);
  EXPECT_EQ(answers_for(400), 100U);
  EXPECT_EQ(answers_for(1'000'000), 128U);
}

// A store of keys, each answer with ten of them.
class KeyStore : public Store, public DeepListing {
 public:
  static inline std::set<std::string> keys;
  static inline std::size_t requests = 0;

  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override {
    ++requests;
    const std::string prefix = key_of(url) + "/";
    std::set<std::pair<std::string, bool>> found;
    for (const std::string& key : keys) {
      if (!key.starts_with(prefix)) continue;
      const std::string rest = key.substr(prefix.size());
      found.emplace(rest.substr(0, rest.find('/')), rest.find('/') == rest.npos);
    }
    std::vector<StoredEntry> entries;
    for (const auto& [name, file] : found)
      entries.push_back({name, file ? std::optional(StoredFile{1, "v", 0}) : std::nullopt});
    return entries;
  }
  Below list_below(const std::string& url, std::size_t answers) const override {
    const std::string prefix = key_of(url) + "/";
    Below found;
    for (const std::string& key : keys) {
      if (!key.starts_with(prefix)) continue;
      if (found.files.size() == answers * 10) found.whole = false;
      if (!found.whole) break;
      found.files.push_back({key.substr(prefix.size()), StoredFile{1, "v", 0}});
    }
    requests += (found.files.size() + 9) / 10;
    return found;
  }
  std::optional<StoredFile> find(const std::string& /*url*/) const override { return {}; }
  void read(const std::string& /*url*/, const StoredFile& /*file*/, std::uint64_t /*offset*/,
            std::span<std::byte> /*out*/) const override {}
  std::optional<Content> fetch(const std::string& /*url*/,
                               std::uint64_t /*max_bytes*/) const override {
    return {};
  }
  std::unique_ptr<StoreUpload> upload(const std::string& /*url*/,
                                      std::uint64_t /*bytes*/) override {
    return nullptr;
  }
  void put(const std::string& /*url*/, std::span<const std::byte> /*bytes*/,
           bool /*only_new*/) override {}
  void remove(const std::string& /*url*/) override {}

 private:
  static std::string key_of(const std::string& url) { return url.substr(7); }
};

class KeyStoreTest : public testing::Test {
 protected:
  KeyStoreTest() {
    register_store("keys://", [] { return std::unique_ptr<Store>(std::make_unique<KeyStore>()); });
    KeyStore::keys.clear();
    KeyStore::requests = 0;
  }
  // Lists every step of a run, and returns how many requests that took.
  static std::size_t requests_for(int steps, int files) {
    KeyStore::keys.clear();
    for (int step = 0; step < steps; ++step) {
      for (int file = 0; file < files; ++file)
        KeyStore::keys.insert(cat("b/run/step-", step, "/__", file, "_0.distcp"));
      KeyStore::keys.insert(cat("b/run/step-", step, "/model/config.json"));
    }
    KeyStore::requests = 0;
    const StoreSession session;
    EXPECT_EQ(list_stored("keys://b/run")->entries.size(), static_cast<std::size_t>(steps));
    for (int step = 0; step < steps; ++step) {
      const auto listing = list_stored(cat("keys://b/run/step-", step));
      EXPECT_EQ(listing->entries.size(), static_cast<std::size_t>(files + 1)) << step;
      EXPECT_TRUE(listing->has_folder("model")) << step;
    }
    return KeyStore::requests;
  }
};

TEST_F(KeyStoreTest, TheStepsOfARunAreListedTogether) {
  // The run, its first step, and 400 files by tens.
  EXPECT_EQ(requests_for(200, 1), 2U + 40U);
  // Few, or with many files each, are not dearer by more than a quarter.
  EXPECT_EQ(requests_for(7, 1), 8U);
  EXPECT_LE(requests_for(100, 30), 101U + 25U);
}

TEST_F(KeyStoreTest, OneStepAloneIsListedAlone) {
  for (int step = 0; step < 50; ++step) KeyStore::keys.insert(cat("b/run/", step, "/.metadata"));
  const StoreSession session;
  list_stored("keys://b/run");
  list_stored("keys://b/run/7");
  list_stored("keys://b/run/7");
  EXPECT_EQ(KeyStore::requests, 2U);
}

}  // namespace
}  // namespace fsdp::formats
