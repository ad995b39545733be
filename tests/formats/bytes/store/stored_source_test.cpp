// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/stored_source.h"

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

class StoredSourceTest : public testing::Test {
 protected:
  StoredSourceTest() : store_(sim_store(settings())) { write_file(dir_ / "f", "0123456789"); }
  fsdp::test::SimSettings settings() const { return {.root = dir_.path(), .fault = {}}; }
  std::shared_ptr<StoredSource> open() const {
    return std::make_shared<StoredSource>(store_, "sim://f", store_.find("sim://f").value());
  }
  static std::string read(const StoredSource& source, std::uint64_t offset, std::size_t count) {
    std::string text(count, '\0');
    source.read_at(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  TempDir dir_;
  fsdp::test::SimStore& store_;
};

TEST_F(StoredSourceTest, reads_ranges_of_the_file) {
  const auto source = open();
  EXPECT_EQ(source->size(), 10U);
  EXPECT_EQ(read(*source, 3, 4), "3456");
  EXPECT_EQ(read(*source, 10, 0), "");
  expect_error(ErrorCode::kTruncated, "sim://f: 4 bytes at byte 7 are needed, but the file has 10",
               [&] { read(*source, 7, 4); });
  expect_error(ErrorCode::kTruncated, "sim://f", [&] { read(*source, UINT64_MAX, 2); });
}

TEST_F(StoredSourceTest, a_small_file_is_one_request) {
  const auto source = open();
  store_.take_requests();
  for (std::uint64_t at = 0; at < 10; ++at) read(*source, at, 1);
  EXPECT_EQ(store_.take_requests().size(), 1U);
}

TEST_F(StoredSourceTest, another_version_is_noticed_by_the_read) {
  const auto source = open();
  write_file(dir_ / "f", "abcdefghij!");
  expect_error(ErrorCode::kChanged, "sim://f: was replaced", [&] { read(*source, 0, 1); });
  // The error is not kept: it may have been the network's.
  expect_error(ErrorCode::kChanged, "sim://f: was replaced", [&] { read(*source, 0, 1); });
}

TEST_F(StoredSourceTest, a_store_without_versions_is_asked_at_the_end) {
  const auto versioned = open();
  store_.take_requests();
  versioned->check_unchanged();
  EXPECT_TRUE(store_.take_requests().empty());

  auto plain = settings();
  plain.versions = false;
  store_.set(plain);
  const auto source = open();
  source->check_unchanged();
  write_file(dir_ / "f", "01234567890");
  expect_error(ErrorCode::kChanged, "sim://f: was written to while it was being read",
               [&] { source->check_unchanged(); });
}

TEST_F(StoredSourceTest, sources_of_one_version_have_one_identity) {
  const auto source = open();
  EXPECT_EQ(open()->identity(), source->identity());
  write_file(dir_ / "f", "01234567890");
  EXPECT_NE(open()->identity(), source->identity());
}

}  // namespace
}  // namespace fsdp::formats
