// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/containers/pickle/literals.h"

namespace fsdp::formats {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): bytes hold NUL

// Like Python's pickle.encode_long, except that 0 has a byte here and none there.
TEST(PickleInt, takes_as_few_bytes_as_its_sign_allows) {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {
      {0, "\0"s},
      {1, "\x01"},
      {127, "\x7f"},
      {128, "\x80\0"s},
      {-1, "\xff"},
      {-128, "\x80"},
      {-129, "\x7f\xff"},
      {32767, "\xff\x7f"},
      {32768, "\0\x80\0"s},
      {INT64_MAX, "\xff\xff\xff\xff\xff\xff\xff\x7f"},
      {INT64_MIN, "\0\0\0\0\0\0\0\x80"s},
  };
  for (const auto& [number, bytes] : cases) {
    EXPECT_EQ(encode_long(number), bytes) << number;
    EXPECT_EQ(decode_long(bytes).as_int(), number);
  }
}

TEST(PickleInt, every_power_of_two_survives) {
  for (unsigned shift = 0; shift < 64; ++shift) {
    const std::uint64_t power = std::uint64_t{1} << shift;
    for (const std::uint64_t bits : {power, power - 1, 0 - power, ~power}) {
      const auto number = static_cast<std::int64_t>(bits);
      EXPECT_EQ(decode_long(encode_long(number)).as_int(), number);
    }
  }
}

TEST(PickleInt, bytes_that_repeat_the_sign_are_dropped) {
  EXPECT_EQ(decode_long("").as_int(), 0);
  EXPECT_EQ(decode_long(std::string(100, '\0')).as_int(), 0);
  EXPECT_EQ(decode_long(std::string(100, '\xff')).as_int(), -1);
  EXPECT_EQ(*decode_long("\0\0\0\0\0\0\0\x80\0\0"s).as_bytes(), "\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(*decode_long("\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff").as_bytes(),
            "\xff\xff\xff\xff\xff\xff\xff\x7f\xff");
}

}  // namespace
}  // namespace fsdp::formats
