// SPDX-License-Identifier: Apache-2.0
// Percent-encoding of paths and queries, spelled as signatures need it [RFC 3986, 2.1 and 2.3].
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::formats {

// Every byte but the unreserved ones (letters, digits, - . _ ~) becomes %XX.
std::string percent_encode(std::string_view text);
// As percent_encode, but slashes stay.
std::string encode_path(std::string_view path);
// As encode_path, but what is an escape already (%2F) stays: for paths of web pages.
std::string complete_path(std::string_view path);
// nullopt: a % without two hexadecimal digits.  `plus_is_blank`: as forms spell blanks.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_blank);

// The members of a query, in any order, not encoded.
using Query = std::vector<std::pair<std::string, std::string>>;
// "a=1&b=" without the question mark: encoded, sorted, and with "=" behind every name.
std::string encode_query(const Query& query);

}  // namespace fsdp::formats
