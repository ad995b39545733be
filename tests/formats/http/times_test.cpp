// SPDX-License-Identifier: Apache-2.0
#include "formats/http/times.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Times, WritesTheTimeOfASignature) {
  EXPECT_EQ(basic_time(1369353600), "20130524T000000Z");
  EXPECT_EQ(basic_time(0), "19700101T000000Z");
  EXPECT_GT(wall_seconds(), 1'700'000'000);
}

TEST(Times, ReadsDatesOfHttp) {
  EXPECT_EQ(parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT"), 1445412480 * kSecond);
  EXPECT_EQ(parse_http_date("Thu, 29 Feb 2024 23:59:60 GMT"), 1709251200 * kSecond);
  for (const char* wrong : {"Wed, 21 Oct 2015 07:28:00 CET", "Wed, 21 Okt 2015 07:28:00 GMT",
                            "Thu, 30 Feb 2024 00:00:00 GMT", "Wed, 21 Oct 2015 24:28:00 GMT",
                            "Wed, 2x Oct 2015 07:28:00 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
                            "Wed, 21 Oct 9999 07:28:00 GMT", ""}) {
    EXPECT_EQ(parse_http_date(wrong), std::nullopt) << wrong;
  }
}

TEST(Times, ReadsTimesOfLists) {
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30Z"), 1255369830 * kSecond);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.5Z"), 1255369830 * kSecond + kSecond / 2);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.000000001Z"), 1255369830 * kSecond + 1);
  for (const char* wrong : {"2009-10-12T17:50:30", "2009-10-12 17:50:30Z", "2009-13-12T17:50:30Z",
                            "2009-10-12T17:50:30.Z", "2009-10-12T17:50:30.0000000001Z",
                            "2009-10-12T17:50:30+00Z", ""}) {
    EXPECT_EQ(parse_iso_time(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace fsdp::formats
