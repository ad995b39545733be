// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/times.h"

#include <ctime>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Times, reads_dates_of_http) {
  EXPECT_EQ(parse_http_date("Thu, 01 Jan 1970 00:00:00 GMT"), 0);
  EXPECT_EQ(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), 784'111'777 * kSecond);
  EXPECT_EQ(parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT"), 1'445'412'480 * kSecond);
  EXPECT_EQ(parse_http_date("Thu, 29 Feb 2024 23:59:59 GMT"), 1'709'251'199 * kSecond);
  // A leap second is the next minute's first.
  EXPECT_EQ(parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT"), 1'483'228'800 * kSecond);
}

TEST(Times, every_month_has_its_place) {
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  for (int month = 0; month < 12; ++month) {
    std::tm parts{};
    parts.tm_year = 123;
    parts.tm_mon = month;
    parts.tm_mday = 28;
    const std::string text = std::string("Mon, 28 ") + kMonths[month] + " 2023 00:00:00 GMT";
    EXPECT_EQ(parse_http_date(text), ::timegm(&parts) * kSecond) << text;
  }
}

TEST(Times, refuses_what_is_no_date_of_http) {
  for (const char* text :
       {"", "0", "yesterday", "Wed, 21 Oct 2015 07:28:00 UTC", "Wed, 21 Oct 2015 07:28:00 GMT ",
        "Wed, 21 Oct 2015 07:28:00", "Wed, 32 Oct 2015 07:28:00 GMT",
        "Wed, 00 Oct 2015 07:28:00 GMT", "Wed, 21 oct 2015 07:28:00 GMT",
        "Wed, 21 Okt 2015 07:28:00 GMT", "Wed, 29 Feb 2023 07:28:00 GMT",
        "Wed, 21 Oct 2015 24:28:00 GMT", "Wed, 21 Oct 2015 07:60:00 GMT",
        "Wed, 21 Oct 2015 07:28:61 GMT", "Wed, 21 Oct 1969 07:28:00 GMT",
        "Wed, 21 Oct 9999 07:28:00 GMT", "Wed, -1 Oct 2015 07:28:00 GMT",
        "Wed, 21 Oct +015 07:28:00 GMT", "Wed,x21xOctx2015x07:28:00 GMT",
        // The two old forms [RFC 9110, 5.6.7]; no server of checkpoints writes them.
        "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"}) {
    EXPECT_EQ(parse_http_date(text), std::nullopt) << text;
  }
}

TEST(Times, reads_times_of_iso) {
  EXPECT_EQ(parse_iso_time("1970-01-01T00:00:00Z"), 0);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.000Z"), 1'255'369'830 * kSecond);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.5Z"), 1'255'369'830 * kSecond + kSecond / 2);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.000000001Z"), 1'255'369'830 * kSecond + 1);
  EXPECT_EQ(parse_iso_time("2200-12-31T23:59:59.999999999Z"),
            7'289'654'399 * kSecond + 999'999'999);
}

TEST(Times, refuses_what_is_no_time_of_iso) {
  for (const char* text :
       {"", "2009", "2009-10-12", "2009-10-12T17:50:30", "2009-10-12T17:50:30+00:00",
        "2009-10-12 17:50:30Z", "2009-13-12T17:50:30Z", "2009-00-12T17:50:30Z",
        "2009-10-12T17:50:30.Z", "2009-10-12T17:50:30.0000000000Z", "2009-10-12T17:50:30.x00Z",
        "2009-10-12T17:50:30,000Z", "2009-10-12T17:50:30ZZ", "2009-10-12T17:5x:30Z",
        "1969-12-31T23:59:59Z", "2201-01-01T00:00:00Z", "-009-10-12T17:50:30Z",
        "2009-10-12t17:50:30z", "2009-10-12T17:50Z......Z"}) {
    EXPECT_EQ(parse_iso_time(text), std::nullopt) << text;
  }
}

TEST(Times, every_truncation_of_a_date_is_refused) {
  const std::string http = "Wed, 21 Oct 2015 07:28:00 GMT";
  for (std::size_t size = 0; size < http.size(); ++size) {
    EXPECT_EQ(parse_http_date(http.substr(0, size)), std::nullopt) << size;
  }
  const std::string iso = "2009-10-12T17:50:30.000Z";
  for (std::size_t size = 0; size < iso.size(); ++size) {
    EXPECT_EQ(parse_iso_time(iso.substr(0, size)), std::nullopt) << size;
  }
}

TEST(Times, writes_the_time_of_a_signature_in_utc) {
  ASSERT_EQ(::setenv("TZ", "America/New_York", 1), 0);
  ::tzset();
  EXPECT_EQ(basic_time(0), "19700101T000000Z");
  EXPECT_EQ(basic_time(1'369'353'600), "20130524T000000Z");
  EXPECT_EQ(parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT"), 1'445'412'480 * kSecond);
  ASSERT_EQ(::unsetenv("TZ"), 0);
  ::tzset();
}

TEST(Times, the_clock_is_that_of_the_machine) {
  const std::int64_t before = ::time(nullptr);
  const std::int64_t now = wall_seconds();
  EXPECT_GE(now, before);
  EXPECT_LE(now, ::time(nullptr));
}

}  // namespace
}  // namespace fsdp::formats
