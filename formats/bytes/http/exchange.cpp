// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/exchange.h"

#include <algorithm>

#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"

namespace fsdp::formats {
namespace {

constexpr int kMaxRedirects = 5;

// Returns how long the server asks to wait: a number of seconds, or a date [RFC 9110, 10.2.3].
std::optional<std::chrono::seconds> retry_after(const HttpHead& head) {
  const std::string* field = head.find("retry-after");
  if (field == nullptr) return std::nullopt;
  constexpr std::int64_t kMost = 1'000'000;
  if (const auto seconds = parse_length(*field))
    return std::chrono::seconds(std::min<std::int64_t>(static_cast<std::int64_t>(*seconds), kMost));
  const auto date = parse_http_date(*field);
  if (!date) return std::nullopt;
  return std::chrono::seconds(
      std::clamp<std::int64_t>(*date / 1'000'000'000 - wall_seconds(), 0, kMost));
}

}  // namespace

std::string Dialect::words(const HttpAnswer& answer) const {
  return std::to_string(answer.head.status);
}

bool Dialect::passes(const HttpAnswer& answer) const {
  switch (answer.head.status) {
    case 408:
    case 425:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    default:
      return false;
  }
}

bool is_missing(int status) {
  return status == 404 || status == 410;
}

Error refusal(const std::string& place, const HttpAnswer& answer, const Dialect& dialect) {
  const std::string words = dialect.words(answer);
  switch (answer.head.status) {
    case 401:
    case 403:
    case 407:
      return {ErrorCode::kAccess, place, ": the server refuses: ", words};
    case 404:
    case 410:
      return {ErrorCode::kNotFound, place, ": no such file: ", words};
    case 412:
    case 416:
      return {ErrorCode::kChanged, place, ": changed while it was read: ", words};
    default:
      return {ErrorCode::kNetwork, place, ": the server answers ", words};
  }
}

HttpAnswer exchange(HttpClient& client, Patience& patience, const Dialect& dialect,
                    const MakeRequest& make, HttpSink* sink, std::size_t max_text) {
  for (;;) {
    HttpRequest request = make();
    if (request.stall.count() == 0) request.stall = patience.limits().stall;
    // A transfer of a body may go on while bytes come; any other must end by the deadline.
    if (request.timeout.count() == 0 && sink == nullptr && request.body.empty())
      request.timeout = patience.left();
    try {
      HttpAnswer answer = client.send(request, sink, max_text);
      if (answer.succeeded() || !dialect.passes(answer)) return answer;
      patience.wait(cat("the server answers ", dialect.words(answer)), 1000,
                    retry_after(answer.head));
    } catch (const TransferError& e) {
      patience.wait(e.what(), e.tries());
    }
  }
}

std::optional<Address> next_address(const std::string& place, const Address& from,
                                    const HttpHead& head, int hop) {
  const std::string* location = head.find("location");
  const int status = head.status;
  const bool redirects =
      status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  if (!redirects || location == nullptr) return std::nullopt;
  auto next = redirected(from, *location);
  if (!next) {
    // Leaves out the query, which may hold a signature.
    throw Error(ErrorCode::kNetwork, place, ": the server redirects to ",
                quote(location->substr(0, location->find('?'))), ", which is not followed");
  }
  if (hop == kMaxRedirects) {
    throw Error(ErrorCode::kNetwork, place, ": the server redirects more than ", kMaxRedirects,
                " times");
  }
  return next;
}

HttpAnswer follow(HttpClient& client, Patience& patience, const Dialect& dialect,
                  const Address& start,
                  const std::function<HttpRequest(const Address&, bool at_home)>& make,
                  HttpSink* sink, const std::function<void(const HttpHead&)>& seen,
                  std::size_t max_text) {
  Address address = start;
  for (int hop = 0;; ++hop) {
    const bool at_home = address.scheme == start.scheme && address.authority == start.authority;
    HttpAnswer answer = exchange(
        client, patience, dialect, [&] { return make(address, at_home); }, sink, max_text);
    auto next = next_address(patience.place(), address, answer.head, hop);
    if (!next) return answer;
    if (seen) seen(answer.head);
    address = *std::move(next);
  }
}

}  // namespace fsdp::formats
