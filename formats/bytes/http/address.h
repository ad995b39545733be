// SPDX-License-Identifier: Apache-2.0
// The parts of a URL of https or http, and where an answer redirects to.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

struct Address {
  std::string scheme;     // https or http
  std::string authority;  // host and port, in lower case: example.org:8080
  std::string target;     // path and query, encoded: /a%20b?c

  std::string text() const { return scheme + "://" + authority + target; }
};

// Splits an encoded URL.  Drops a fragment, and encodes what may not stand in a URL.
// nullopt: another scheme, a name or password before the host, or no host.
std::optional<Address> parse_address(std::string_view url);

// Returns where an answer of `from` with this Location leads to [RFC 9110, 10.2.2].  nullopt: the
// redirect must not be followed (another scheme, or from https to http).
std::optional<Address> redirected(const Address& from, std::string_view location);

// Returns whether `authority` names this machine: localhost, 127.0.0.0/8, [::1].
bool is_loopback(std::string_view authority);

}  // namespace fsdp::formats
