// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/read_ahead.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/store/stored_source.h"
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

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

// Holds requests back until so many are under way, or for 20 s.
class Gate {
 public:
  explicit Gate(std::size_t wanted) : wanted_(wanted) {}
  void pass() {
    std::unique_lock lock(mutex_);
    ++came_;
    opened_.notify_all();
    opened_.wait_for(lock, std::chrono::seconds(20), [&] { return came_ >= wanted_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    wanted_ = 0;
    opened_.notify_all();
  }
  void wait_for_one() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, std::chrono::seconds(20), [&] { return came_ != 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  std::size_t wanted_;
  std::size_t came_ = 0;
};

class ReadAheadTest : public testing::Test {
 protected:
  ReadAheadTest() : store_(sim_store(settings())) {}
  ~ReadAheadTest() override {
    ReadAhead::shared().set_budget(budget_);
    store_.set(settings());
  }
  fsdp::test::SimSettings settings() const { return {.root = dir_.path(), .fault = {}}; }
  // Requests may pass it after the test.
  std::shared_ptr<Gate> gate_reads(std::size_t wanted) {
    auto gate = std::make_shared<Gate>(wanted);
    auto gated = settings();
    gated.fault = [gate](SimRequest request, const std::string&) {
      if (request == SimRequest::kRead) gate->pass();
      return std::optional<ErrorCode>();
    };
    store_.set(gated);
    return gate;
  }

  // A file whose bytes say where they lie.
  std::unique_ptr<StoredSource> file(const std::string& name, std::uint64_t bytes) {
    std::string text(bytes, '\0');
    for (std::uint64_t i = 0; i < bytes; ++i) text[i] = byte_at(i);
    write_file(dir_ / name, text);
    const std::string url = "sim://" + name;
    return std::make_unique<StoredSource>(store_, url, store_.find(url).value());
  }
  static char byte_at(std::uint64_t at) { return static_cast<char>(at * 31 + at / 4093); }

  static void expect_read(const StoredSource& source, std::uint64_t offset, std::uint64_t count) {
    std::string text(count, '\0');
    source.read_at(offset, std::as_writable_bytes(std::span(text)));
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(text[i], byte_at(offset + i)) << "byte " << offset + i;
    }
  }

  TempDir dir_;
  fsdp::test::SimStore& store_;
  const std::uint64_t budget_ = ReadAhead::shared().budget();
};

TEST_F(ReadAheadTest, hints_that_lie_close_together_are_one_request) {
  const auto source = file("f", 4 * kMiB);
  store_.take_requests();
  for (std::uint64_t at = 0; at < 20; ++at) source->read_ahead(50'000 * at, 1000);
  for (std::uint64_t at = 0; at < 20; ++at) expect_read(*source, 50'000 * at, 1000);
  EXPECT_EQ(store_.count(SimRequest::kRead), 1U);
  store_.take_requests();
  // A gap of more than 64 KiB is not read.
  source->read_ahead(2 * kMiB, kKiB);
  source->read_ahead(3 * kMiB, kKiB);
  expect_read(*source, 2 * kMiB, kKiB);
  expect_read(*source, 3 * kMiB, kKiB);
  EXPECT_EQ(store_.count(SimRequest::kRead), 2U);
}

// No request is answered before the others have come.
TEST_F(ReadAheadTest, many_files_are_read_at_once) {
  constexpr std::size_t kFiles = 40;
  std::vector<std::unique_ptr<StoredSource>> sources;
  for (std::size_t i = 0; i < kFiles; ++i)
    sources.push_back(file("f" + std::to_string(i), 2 * kMiB));
  store_.take_requests();
  gate_reads(kFiles);
  for (const auto& source : sources) source->read_ahead(kMiB, 10 * kKiB);
  for (const auto& source : sources) expect_read(*source, kMiB, 10 * kKiB);
  EXPECT_EQ(store_.most_at_once(), kFiles);
  EXPECT_EQ(store_.count(SimRequest::kRead), kFiles);
}

// Parts of one file too, and a long hint is several requests.
TEST_F(ReadAheadTest, a_long_range_is_read_by_several_requests_at_once) {
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  gate_reads(4);
  source->read_ahead(0, 16 * kMiB);
  for (std::uint64_t at = 0; at < 16; ++at) expect_read(*source, at * kMiB, kMiB);
  EXPECT_GE(store_.most_at_once(), 4U);
  EXPECT_LE(store_.count(SimRequest::kRead), 8U);
}

TEST_F(ReadAheadTest, reads_in_order_are_read_ahead_of_without_hints) {
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  // Gaps of some KiB, as headers of records are, do not end the order.
  for (std::uint64_t at = 0; at + 128 * kKiB <= 16 * kMiB; at += 128 * kKiB)
    expect_read(*source, at, 120 * kKiB);
  EXPECT_LE(store_.count(SimRequest::kRead), 20U);
}

// The first request that was not asked for begins while the one before it is being answered.
TEST_F(ReadAheadTest, what_follows_is_requested_meanwhile) {
  const auto source = file("f", 16 * kMiB);
  expect_read(*source, 0, 64 * kKiB);
  gate_reads(2);
  store_.take_requests();
  expect_read(*source, 64 * kKiB, 8 * kMiB);
  EXPECT_GE(store_.most_at_once(), 2U);
}

// Data of several files that are read by turns do not drive each other out of the memory.
TEST_F(ReadAheadTest, files_that_are_read_by_turns_share_the_memory) {
  ReadAhead::shared().set_budget(4 * kMiB);
  std::vector<std::unique_ptr<StoredSource>> sources;
  for (int i = 0; i < 8; ++i) sources.push_back(file("f" + std::to_string(i), 8 * kMiB));
  store_.take_requests();
  for (std::uint64_t at = 0; at < 8 * kMiB; at += 64 * kKiB) {
    for (const auto& source : sources) expect_read(*source, at, 64 * kKiB);
  }
  // Each of 256 KiB, but for the first ones.
  EXPECT_LE(store_.count(SimRequest::kRead), 8U * (32 + 4));
}

// Only data that follow each other are read ahead of: headers far apart are not.
TEST_F(ReadAheadTest, reads_far_apart_stay_small) {
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  for (std::uint64_t at = kMiB; at < 15 * kMiB; at += 256 * kKiB)
    expect_read(*source, at, 4 * kKiB);
  EXPECT_EQ(store_.count(SimRequest::kRead), 56U);
}

// Hints that alternate between two places are joined in each.
TEST_F(ReadAheadTest, hints_in_turns_are_joined_where_they_lie) {
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  for (std::uint64_t i = 0; i < 100; ++i) {
    source->read_ahead(2 * kMiB + i * 2000, 2000);
    source->read_ahead(8 * kMiB + i * 3000, 3000);
  }
  for (std::uint64_t i = 0; i < 100; ++i) {
    expect_read(*source, 2 * kMiB + i * 2000, 2000);
    expect_read(*source, 8 * kMiB + i * 3000, 3000);
  }
  EXPECT_LE(store_.count(SimRequest::kRead), 3U);
}

// What was read of an item's headers stays until its data are read as well.
TEST_F(ReadAheadTest, a_hint_keeps_what_was_read_already) {
  ReadAhead::shared().set_budget(2 * kMiB);
  const auto source = file("f", 16 * kMiB);
  for (std::uint64_t at = 0; at < 16 * kMiB; at += 128 * kKiB) source->read_ahead(at, 8 * kKiB);
  for (std::uint64_t at = 0; at < 16 * kMiB; at += 128 * kKiB) expect_read(*source, at, 8 * kKiB);
  store_.take_requests();
  std::uint64_t hinted = 0;
  for (std::uint64_t at = 0; at < 16 * kMiB; at += 128 * kKiB) {
    while (hinted < 16 * kMiB && source->read_ahead(hinted, 128 * kKiB)) hinted += 128 * kKiB;
    hinted = std::max(hinted, at + 128 * kKiB);
    expect_read(*source, at, 128 * kKiB);
  }
  // 16 MiB by requests of up to 256 KiB, of which some end at a header that stayed.
  EXPECT_LE(store_.count(SimRequest::kRead), 128U);
}

// Hints that are a little longer than a request do not leave a small one behind each.
TEST_F(ReadAheadTest, requests_are_filled) {
  ReadAhead::shared().set_budget(8 * kMiB);
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  std::uint64_t hinted = 0;
  for (std::uint64_t at = 0; at < 15 * kMiB; at += 300 * kKiB) {
    while (hinted < 15 * kMiB && source->read_ahead(hinted, 300 * kKiB)) hinted += 300 * kKiB;
    hinted = std::max(hinted, at + 300 * kKiB);
    expect_read(*source, at, 300 * kKiB);
  }
  EXPECT_LE(store_.count(SimRequest::kRead), 70U) << "16 MiB by 256 KiB are 64";
}

// The ends of many files, which most often nobody reads again, leave room for data.
TEST_F(ReadAheadTest, what_may_be_read_again_leaves_room) {
  ReadAhead::shared().set_budget(4 * kMiB);
  std::vector<std::unique_ptr<StoredSource>> sources;
  for (int i = 0; i < 16; ++i) {
    sources.push_back(file("f" + std::to_string(i), 2 * kMiB));
    sources.back()->will_read(0, 256 * kKiB);
  }
  for (const auto& source : sources) expect_read(*source, 0, kKiB);
  store_.take_requests();
  expect_read(*sources.back(), kKiB, kKiB);
  EXPECT_EQ(store_.count(SimRequest::kRead), 0U) << "the latest ones are still there";
  const auto data = file("data", 8 * kMiB);
  gate_reads(8);  // as many as 2 MiB hold
  for (std::uint64_t at = 0; at < 8 * kMiB; at += kMiB) data->read_ahead(at, kMiB);
  expect_read(*data, 0, 8 * kMiB);
}

TEST_F(ReadAheadTest, the_end_of_a_file_is_one_request) {
  const auto source = file("f", 4 * kMiB);
  store_.take_requests();
  expect_read(*source, 4 * kMiB - 22, 22);
  expect_read(*source, 4 * kMiB - 4096, 4096);
  expect_read(*source, 4 * kMiB - 50 * kKiB, 10);
  EXPECT_EQ(store_.count(SimRequest::kRead), 1U);
}

TEST_F(ReadAheadTest, no_byte_is_read_twice_and_the_memory_is_kept) {
  ReadAhead::shared().set_budget(kMiB);  // four requests
  const auto source = file("f", 16 * kMiB);
  store_.take_requests();
  std::uint64_t hinted = 0;
  for (std::uint64_t at = 0; at < 16 * kMiB; at += 64 * kKiB) {
    while (hinted < 16 * kMiB && source->read_ahead(hinted, 64 * kKiB)) hinted += 64 * kKiB;
    EXPECT_LE(hinted, at + 3 * kMiB);
    expect_read(*source, at, 64 * kKiB);
  }
  EXPECT_LE(store_.most_at_once(), 5U);
  EXPECT_LE(store_.count(SimRequest::kRead), 80U);
}

TEST_F(ReadAheadTest, what_nobody_comes_for_is_given_back) {
  ReadAhead::shared().set_budget(kMiB);
  const auto unread = file("unread", 4 * kMiB);
  const auto source = file("f", 8 * kMiB);
  unread->read_ahead(0, kMiB);
  source->read_ahead(0, 8 * kMiB);
  for (std::uint64_t at = 0; at < 8 * kMiB; at += 128 * kKiB) expect_read(*source, at, 128 * kKiB);
  expect_read(*unread, 0, 4 * kMiB);
}

TEST_F(ReadAheadTest, a_request_that_failed_is_made_again) {
  const auto source = file("f", 4 * kMiB);
  auto failing = settings();
  failing.fault = [](SimRequest, const std::string&) { return std::optional(ErrorCode::kNetwork); };
  store_.set(failing);
  source->read_ahead(0, 4 * kMiB);
  expect_error(ErrorCode::kNetwork, "sim://f", [&] { expect_read(*source, 0, 10); });
  expect_error(ErrorCode::kNetwork, "sim://f", [&] { expect_read(*source, 3 * kMiB, 10); });
  store_.set(settings());
  expect_read(*source, 0, 4 * kMiB);
}

TEST_F(ReadAheadTest, a_signal_ends_the_wait_for_a_request) {
  ReadAhead::shared().set_budget(64 * kMiB);
  const auto source = file("f", 64 * kMiB);
  const auto gate = gate_reads(1000);
  source->read_ahead(0, 64 * kMiB);  // more than half of the memory: begun at once
  gate->wait_for_one();
  interrupt_signal = SIGTERM;
  expect_error(ErrorCode::kInterrupted, "interrupted", [&] { expect_read(*source, 0, 10); });
  interrupt_signal = 0;
  gate->open();
}

TEST_F(ReadAheadTest, a_source_may_end_while_its_requests_are_under_way) {
  ReadAhead::shared().set_budget(64 * kMiB);
  std::shared_ptr<Gate> gate;
  {
    const auto source = file("f", 64 * kMiB);
    gate = gate_reads(1000);
    source->read_ahead(0, 64 * kMiB);
    gate->wait_for_one();
  }
  gate->open();
  store_.set(settings());
  const auto source = file("g", 4 * kMiB);
  expect_read(*source, 0, 4 * kMiB);
}

}  // namespace
}  // namespace fsdp::formats
