// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/address.h"

#include <algorithm>

#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/headers.h"

namespace fsdp::formats {
namespace {

// Encodes the characters that no URL has; leaves all others as they are.
std::string complete_target(std::string_view target) {
  constexpr std::string_view kAllowed = "!#$&'()*+,/:;=?@[]%-._~";
  std::string out;
  for (const char c : target) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       kAllowed.find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : percent_encode(std::string_view(&c, 1));
  }
  return out;
}

bool is_host_and_port(std::string_view authority) {
  return !authority.empty() && std::ranges::all_of(authority, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':' || c == '[' || c == ']';
  });
}

}  // namespace

std::optional<Address> parse_address(std::string_view url) {
  url = url.substr(0, url.find('#'));
  const std::size_t colon = url.find("://");
  if (colon == std::string_view::npos) return std::nullopt;
  Address address;
  address.scheme = lower_case(url.substr(0, colon));
  if (address.scheme != "https" && address.scheme != "http") return std::nullopt;
  url.remove_prefix(colon + 3);
  const std::size_t end = std::min(url.find_first_of("/?"), url.size());
  if (!is_host_and_port(url.substr(0, end))) return std::nullopt;
  address.authority = lower_case(url.substr(0, end));
  address.target = complete_target(url.substr(end));
  if (!address.target.starts_with('/')) address.target.insert(0, "/");
  return address;
}

std::optional<Address> redirected(const Address& from, std::string_view location) {
  std::optional<Address> to;
  const std::size_t colon = location.find("://");
  if (colon != std::string_view::npos && location.find_first_of("/?#") > colon) {
    to = parse_address(location);
  } else if (location.starts_with("//")) {
    to = parse_address(from.scheme + ":" + std::string(location));
  } else if (location.starts_with('/')) {
    to = parse_address(from.scheme + "://" + from.authority + std::string(location));
  } else if (!location.empty()) {
    const std::string path = from.target.substr(0, from.target.find('?'));
    to = parse_address(from.scheme + "://" + from.authority + path.substr(0, path.rfind('/') + 1) +
                       std::string(location));
  }
  if (to && from.scheme == "https" && to->scheme != "https") return std::nullopt;
  return to;
}

bool is_loopback(std::string_view authority) {
  if (authority.starts_with("[::1]")) return authority.size() == 5 || authority[5] == ':';
  const std::string_view host = authority.substr(0, authority.find(':'));
  if (host == "localhost") return true;
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace fsdp::formats
