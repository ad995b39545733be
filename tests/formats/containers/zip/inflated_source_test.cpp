// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/containers/zip/inflate_stream.h"
#include "tests/support/deflated.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::deflated;
using test::expect_error;

// A million numbers, so that several inputs are read.
class Inflated : public ::testing::Test {
 protected:
  Inflated() : plain_(1'000'000) {
    std::uint32_t state = 1;
    for (std::byte& byte : plain_) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>(state >> 28U);
    }
    packed_ = deflated(plain_);
  }
  std::shared_ptr<const ByteSource> packed(std::size_t bytes = SIZE_MAX) {
    return std::make_shared<MemorySource>(
        std::span(packed_).first(std::min(bytes, packed_.size())));
  }
  void expect_part(const ByteSource& source, std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    source.read_at(offset, out);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), plain_.begin() + static_cast<long>(offset)))
        << offset;
  }

  std::vector<std::byte> plain_;
  std::vector<std::byte> packed_;
};

TEST_F(Inflated, reads_as_if_it_were_stored) {
  const InflatedSource source(packed(), plain_.size());
  EXPECT_EQ(source.size(), plain_.size());
  expect_part(source, 0, 100);
  expect_part(source, 100, 300'000);
  expect_part(source, 700'000, 300'000);
  expect_part(source, 999'999, 1);
  expect_part(source, 5, 700'000);  // a step back
  expect_part(source, plain_.size(), 0);
}

TEST_F(Inflated, bytes_past_the_end_are_refused) {
  const InflatedSource source(packed(), plain_.size());
  std::vector<std::byte> out(2);
  expect_error(ErrorCode::kTruncated, "2 bytes at byte 999999",
               [&] { source.read_at(999'999, out); });
}

TEST_F(Inflated, a_stream_that_holds_less_than_it_says_is_refused) {
  std::vector<std::byte> out(10);
  const InflatedSource longer(packed(), plain_.size() + 5);
  expect_error(ErrorCode::kTruncated, "holds 1000000",
               [&] { longer.read_at(plain_.size() - 5, out); });
  const InflatedSource cut(packed(packed_.size() / 2), plain_.size());
  expect_error(ErrorCode::kTruncated, "ends after", [&] { cut.read_at(plain_.size() - 10, out); });
}

TEST_F(Inflated, what_is_no_deflate_stream_is_refused) {
  packed_.assign(packed_.size(), std::byte{0xFF});
  const InflatedSource source(packed(), plain_.size());
  std::vector<std::byte> out(10);
  expect_error(ErrorCode::kZipMismatch, "no valid stream", [&] { source.read_at(0, out); });
}

TEST_F(Inflated, more_than_the_ratio_of_deflate_is_refused_at_once) {
  expect_error(ErrorCode::kLimitRatio, "cannot hold",
               [&] { InflatedSource(packed(100), 1'000'000); });
}

TEST_F(Inflated, what_comes_out_is_charged) {
  const BudgetScope scope({0, 100'000, 0});
  const InflatedSource source(packed(), plain_.size());
  std::vector<std::byte> out(plain_.size());
  EXPECT_THROW(source.read_at(0, out), OverWork);
}

TEST_F(Inflated, a_wish_to_stop_ends_it) {
  const InflatedSource source(packed(), plain_.size());
  std::vector<std::byte> out(10);
  interrupt_signal = 15;
  expect_error(ErrorCode::kInterrupted, "interrupted", [&] { source.read_at(0, out); });
  interrupt_signal = 0;
}

}  // namespace
}  // namespace fsdp::formats
