// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/service_tokens.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/store/small_file.h"

namespace fsdp::formats {
namespace {

constexpr std::int64_t kPerSecond = 1'000'000'000;
constexpr unsigned kServiceTries = 4;
constexpr std::size_t kMostToken = std::size_t{64} << 10U;

}  // namespace

Secret read_token(const std::string& path) {
  auto read = read_small_file(path, kMostToken);
  if (!read) throw Error(ErrorCode::kAccess, escape(path) + ": the token file does not exist");
  std::string text = std::move(*read);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || text.size() == kMostToken ||
      !std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7F; })) {
    throw Error(ErrorCode::kUsage, escape(path) + ": holds no token");
  }
  return Secret(std::move(text));
}

NetworkLimits service_limits() {
  NetworkLimits limits = network_limits();
  limits.tries = std::min(limits.tries, kServiceTries);
  return limits;
}

void require_private(const Address& address, const std::string& what) {
  constexpr std::array<std::string_view, 3> kServices = {"169.254.170.2", "169.254.170.23",
                                                         "[fd00:ec2::23]"};
  if (address.scheme == "https" || is_loopback(address.authority) ||
      std::ranges::find(kServices, address.authority) != kServices.end()) {
    return;
  }
  throw Error(ErrorCode::kUsage, what, " is at ", quote(address.scheme + "://" + address.authority),
              ", which would expose the token; use https, or http on this machine");
}

Error no_credentials(const std::string& what) {
  return {ErrorCode::kAccess, what + ": the answer holds no credentials"};
}

std::int64_t expiry_of(const std::string& text) {
  const auto time = parse_iso_time(text);
  return time ? *time / kPerSecond : 0;
}

}  // namespace fsdp::formats
