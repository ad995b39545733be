// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/times.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

namespace fsdp::formats {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;

std::optional<int> digits_at(std::string_view text, std::size_t at, std::size_t count) {
  if (at + count > text.size()) return std::nullopt;
  int value = 0;
  for (const char c : text.substr(at, count)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

struct Civil {
  std::optional<int> year, month, day, hour, minute, second;
};

std::optional<std::int64_t> nanoseconds_of(const Civil& civil) {
  if (!civil.year || !civil.month || !civil.day || !civil.hour || !civil.minute || !civil.second)
    return std::nullopt;
  using namespace std::chrono;  // NOLINT(google-build-using-namespace): of literals and calendars
  const year_month_day date{year(*civil.year), month(static_cast<unsigned>(*civil.month)),
                            day(static_cast<unsigned>(*civil.day))};
  // A second of 60 is a leap second.  Nanoseconds after 2200 would soon exceed 64 bits.
  if (!date.ok() || *civil.hour > 23 || *civil.minute > 59 || *civil.second > 60 ||
      *civil.year < 1970 || *civil.year > 2200) {
    return std::nullopt;
  }
  const std::int64_t days = sys_days(date).time_since_epoch().count();
  return (((days * 24 + *civil.hour) * 60 + *civil.minute) * 60 + *civil.second) * kNanoseconds;
}

}  // namespace

std::int64_t wall_seconds() {
  return static_cast<std::int64_t>(std::time(nullptr));
}

std::string basic_time(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return {text.data(), size};
}

std::optional<std::int64_t> parse_http_date(std::string_view text) {
  constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  if (text.size() != 29 || text.substr(25) != " GMT" || text.substr(3, 2) != ", " ||
      text[7] != ' ' || text[11] != ' ' || text[16] != ' ' || text[19] != ':' || text[22] != ':') {
    return std::nullopt;
  }
  const auto* month = std::ranges::find(kMonths, text.substr(8, 3));
  if (month == kMonths.end()) return std::nullopt;
  return nanoseconds_of({digits_at(text, 12, 4), static_cast<int>(month - kMonths.begin()) + 1,
                         digits_at(text, 5, 2), digits_at(text, 17, 2), digits_at(text, 20, 2),
                         digits_at(text, 23, 2)});
}

std::optional<std::int64_t> parse_iso_time(std::string_view text) {
  if (text.size() < 20 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' ||
      text[16] != ':' || text.back() != 'Z') {
    return std::nullopt;
  }
  const auto whole =
      nanoseconds_of({digits_at(text, 0, 4), digits_at(text, 5, 2), digits_at(text, 8, 2),
                      digits_at(text, 11, 2), digits_at(text, 14, 2), digits_at(text, 17, 2)});
  if (!whole) return std::nullopt;
  const std::string_view rest = text.substr(19, text.size() - 20);
  if (rest.empty()) return whole;
  if (rest[0] != '.' || rest.size() < 2 || rest.size() > 10) return std::nullopt;
  std::int64_t fraction = 0;
  for (std::size_t i = 1; i < 10; ++i) {
    const auto digit = i < rest.size() ? digits_at(rest, i, 1) : 0;
    if (!digit) return std::nullopt;
    fraction = fraction * 10 + *digit;
  }
  return *whole + fraction;
}

}  // namespace fsdp::formats
