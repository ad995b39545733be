// SPDX-License-Identifier: Apache-2.0
// Percent-encoding of paths and queries, spelled as signatures need it [RFC 3986, 2.1 and 2.3].
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::formats {

// Encodes every byte except the unreserved ones (letters, digits, - . _ ~) as %XX.
std::string percent_encode(std::string_view text);
// Like percent_encode, but keeps slashes.
std::string encode_path(std::string_view path);
// Like encode_path, but keeps escapes (%2F): for paths of web pages.
std::string complete_path(std::string_view path);
// Returns nullopt for a % without two hexadecimal digits.  `plus_is_blank`: + is a blank, as in
// forms.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_blank);

// The members of a query, in any order, not encoded.
using Query = std::vector<std::pair<std::string, std::string>>;
// Returns "a=1&b=" without the question mark: encoded, sorted, and with "=" after every name.
std::string encode_query(const Query& query);

}  // namespace fsdp::formats
