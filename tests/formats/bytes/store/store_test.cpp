// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/store.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;
using fsdp::test::sim_store;
using fsdp::test::SimRequest;
using fsdp::test::TempDir;
using fsdp::test::write_file;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string read_all(const Store& store, const std::string& url) {
  const auto content = store.fetch(url, 100);
  if (!content) return "none";
  return {reinterpret_cast<const char*>(content->bytes.data()), content->bytes.size()};
}

TEST(Store, IsFoundByItsScheme) {
  const TempDir dir;
  fsdp::test::SimStore& store = sim_store({.root = dir.path(), .fault = {}});
  EXPECT_EQ(store_of("sim://a/b"), &store);
  EXPECT_EQ(store_of("sim:/a/b"), nullptr);
  EXPECT_EQ(store_of("/a/sim://b"), nullptr);
  EXPECT_EQ(store_of("none://a/b"), nullptr);
  EXPECT_EQ(store_of(""), nullptr);
}

TEST(SimStore, ReadsFilesOfAFolder) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "bucket/run");
  write_file(dir / "bucket/a", "0123456789");
  fsdp::test::SimStore& store = sim_store({.root = dir.path(), .fault = {}});
  const auto file = store.find("sim://bucket/a");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 10U);
  EXPECT_FALSE(store.find("sim://bucket/run"));
  std::array<std::byte, 3> out{};
  store.read("sim://bucket/a", *file, 4, out);
  EXPECT_EQ(out[0], std::byte{'4'});
  const auto entries = store.list("sim://bucket");
  ASSERT_TRUE(entries);
  EXPECT_EQ(entries->size(), 2U);
  EXPECT_EQ(store.list("sim://bucket/none")->size(), 0U);
  EXPECT_EQ(store.count(SimRequest::kRead), 1U);
  write_file(dir / "bucket/a", "01234567890");
  expect_error(ErrorCode::kChanged, "sim://bucket/a: was replaced",
               [&] { store.read("sim://bucket/a", *file, 4, out); });
  expect_error(ErrorCode::kLimitSize, "has 11 bytes, at most 10",
               [&] { store.fetch("sim://bucket/a", 10); });
}

TEST(SimStore, UploadsAppearWhole) {
  const TempDir dir;
  fsdp::test::SimStore& store = sim_store({.root = dir.path(), .part_bytes = 4, .fault = {}});
  {
    const auto upload = store.upload("sim://b/x", 6);
    upload->put(1, bytes_of("56"));
    upload->put(0, bytes_of("1234"));
    EXPECT_FALSE(store.find("sim://b/x"));
    upload->complete(true);
  }
  EXPECT_EQ(read_all(store, "sim://b/x"), "123456");
  const auto again = store.upload("sim://b/x", 1);
  again->put(0, bytes_of("y"));
  expect_error(ErrorCode::kExists, "sim://b/x", [&] { again->complete(true); });
  again->complete(false);
  EXPECT_EQ(read_all(store, "sim://b/x"), "y");
  store.put("sim://b/z", bytes_of("z"), true);
  expect_error(ErrorCode::kExists, "sim://b/z",
               [&] { store.put("sim://b/z", bytes_of("w"), true); });
  store.remove("sim://b/z");
  store.remove("sim://b/z");
  EXPECT_FALSE(store.find("sim://b/z"));
}

TEST(SimStore, FailsAsItIsTold) {
  const TempDir dir;
  write_file(dir / "a", "0");
  fsdp::test::SimStore& store = sim_store(
      {.root = dir.path(), .fault = [](SimRequest request, const std::string&) {
         return request == SimRequest::kFind ? std::optional(ErrorCode::kAccess) : std::nullopt;
       }});
  expect_error(ErrorCode::kAccess, "sim://a", [&] { store.find("sim://a"); });
  EXPECT_EQ(read_all(store, "sim://a"), "0");
}

}  // namespace
}  // namespace fsdp::formats
