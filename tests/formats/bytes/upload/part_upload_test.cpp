// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/part_upload.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "formats/bytes/upload/spool.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::SimRequest;

class PartUploadTest : public testing::Test {
 protected:
  explicit PartUploadTest(std::uint64_t part_bytes = 64) {
    settings_.root = folder_.path();
    settings_.part_bytes = part_bytes;
    store_ = &test::sim_store(settings_);
    file_ = spool_.add("output");
    upload_ = std::make_unique<PartUpload>(*store_, "sim://bucket/key", file_, senders_);
  }

  ~PartUploadTest() override { senders_.stop(std::chrono::seconds(10)); }

  std::string content(std::size_t bytes) const {
    std::string text(bytes, '\0');
    std::mt19937 random(3);
    for (char& c : text) c = static_cast<char>(random());
    return text;
  }
  void write(const std::string& all, std::uint64_t begin, std::uint64_t end, bool kept = false) {
    std::fstream out(file_, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(begin));
    out.write(all.data() + begin, static_cast<std::streamsize>(end - begin));
    out.close();
    upload_->wrote(begin, end - begin, kept);
  }
  std::string stored() const { return test::to_text(test::read_file(folder_ / "bucket/key")); }
  void resize(std::uint64_t bytes) const { std::filesystem::resize_file(file_, bytes); }

  test::TempDir folder_;
  test::SimSettings settings_;
  test::SimStore* store_ = nullptr;
  Spool spool_;
  std::filesystem::path file_;
  SenderPool senders_;
  std::unique_ptr<PartUpload> upload_;
};

TEST_F(PartUploadTest, bytes_in_any_order_arrive_as_they_are) {
  const std::string all = content(1000);
  std::vector<std::uint64_t> blocks(100);
  std::iota(blocks.begin(), blocks.end(), 0U);
  std::mt19937 random(5);
  std::shuffle(blocks.begin(), blocks.end(), random);
  resize(all.size());
  upload_->begin(all.size());
  for (const std::uint64_t block : blocks) write(all, block * 10, block * 10 + 10, block % 7 == 0);
  upload_->finish(all.size());
  senders_.wait();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bucket/key"));
  upload_->complete(true);
  EXPECT_EQ(stored(), all);
  EXPECT_EQ(store_->count(SimRequest::kPart), 16U);
}

TEST_F(PartUploadTest, a_part_is_sent_as_soon_as_it_is_whole) {
  const std::string all = content(256);
  resize(all.size());
  upload_->begin(all.size());
  write(all, 0, 60);
  write(all, 64, 192);
  senders_.wait();
  EXPECT_EQ(store_->count(SimRequest::kPart), 2U);
  write(all, 60, 64);
  senders_.wait();
  EXPECT_EQ(store_->count(SimRequest::kPart), 3U);
}

TEST_F(PartUploadTest, what_was_never_written_is_zeros) {
  const std::string all = content(200);
  resize(all.size());
  upload_->begin(all.size());
  write(all, 70, 90);
  upload_->finish(all.size());
  senders_.wait();
  upload_->complete(true);
  std::string expected(200, '\0');
  expected.replace(70, 20, all, 70, 20);
  EXPECT_EQ(stored(), expected);
}

TEST_F(PartUploadTest, a_small_file_of_unknown_length_takes_one_request) {
  const std::string all = content(300);
  write(all, 0, all.size());
  upload_->finish(all.size());
  senders_.wait();
  upload_->complete(true);
  EXPECT_EQ(stored(), all);
  EXPECT_EQ(store_->count(SimRequest::kUpload), 0U);
  EXPECT_EQ(store_->count(SimRequest::kPut), 1U);
}

TEST_F(PartUploadTest, an_empty_file_is_a_file) {
  upload_->begin(0);
  upload_->finish(0);
  upload_->complete(true);
  EXPECT_EQ(stored(), "");
}

TEST_F(PartUploadTest, bytes_that_are_written_twice_are_an_error) {
  const std::string all = content(100);
  resize(all.size());
  upload_->begin(all.size());
  write(all, 0, 20);
  test::expect_error(ErrorCode::kIo, "5 bytes at byte 19 are written twice",
                     [&] { upload_->wrote(19, 5, false); });
  test::expect_error(ErrorCode::kIo, "lie past the end", [&] { upload_->wrote(99, 2, false); });
}

TEST_F(PartUploadTest, a_file_of_that_name_is_not_replaced_unasked) {
  std::filesystem::create_directories(folder_ / "bucket");
  test::write_file(folder_ / "bucket/key", "old");
  const std::string all = content(100);
  resize(all.size());
  upload_->begin(all.size());
  write(all, 0, all.size());
  upload_->finish(all.size());
  senders_.wait();
  test::expect_error(ErrorCode::kExists, "exists", [&] { upload_->complete(true); });
  EXPECT_EQ(stored(), "old");
  upload_->complete(false);
  EXPECT_EQ(stored(), all);
}

TEST_F(PartUploadTest, the_failure_of_a_part_reaches_the_writer) {
  settings_.fault = [](SimRequest request, const std::string&) {
    return request == SimRequest::kPart ? std::optional(ErrorCode::kNetwork) : std::nullopt;
  };
  store_->set(settings_);
  const std::string all = content(100);
  resize(all.size());
  upload_->begin(all.size());
  test::expect_error(ErrorCode::kNetwork, "told to fail", [&] {
    write(all, 0, all.size());
    upload_->finish(all.size());
    senders_.wait();
  });
}

class LargePartsTest : public PartUploadTest {
 protected:
  LargePartsTest() : PartUploadTest(1U << 20U) {}
};

TEST_F(LargePartsTest, space_is_given_back_except_for_what_is_kept) {
  const std::uint64_t bytes = 8U << 20U;
  const std::string all = content(bytes);
  resize(bytes);
  upload_->begin(bytes);
  write(all, 0, 100, true);
  for (std::uint64_t at = 100; at < bytes; at += 100'000)
    write(all, at, std::min<std::uint64_t>(at + 100'000, bytes));
  upload_->finish(bytes);
  senders_.wait();
  struct stat info {};
  ASSERT_EQ(::stat(file_.c_str(), &info), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), bytes);
  EXPECT_LE(info.st_blocks * 512, 64 << 10);
  EXPECT_EQ(test::to_text(test::read_file(file_)).substr(0, 100), all.substr(0, 100));
  upload_->complete(true);
  EXPECT_EQ(stored(), all);
}

}  // namespace
}  // namespace fsdp::formats
