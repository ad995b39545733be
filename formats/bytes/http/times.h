// SPDX-License-Identifier: Apache-2.0
// The dates of requests and answers.  Every time is UTC.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Returns the seconds since the epoch.
std::int64_t wall_seconds();
// Returns "20130524T000000Z", as a signature has it.
std::string basic_time(std::int64_t seconds);
// Parses "Wed, 21 Oct 2015 07:28:00 GMT" [RFC 9110, 5.6.7] into nanoseconds since the epoch;
// nullopt for anything else.  Of the name of the day only its length matters.
std::optional<std::int64_t> parse_http_date(std::string_view text);
// Parses "2009-10-12T17:50:30.000Z" into nanoseconds since the epoch; nullopt for anything else.
std::optional<std::int64_t> parse_iso_time(std::string_view text);

}  // namespace fsdp::formats
