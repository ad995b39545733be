// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_client.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/remote/digests.h"
#include "formats/bytes/remote/sign.h"

namespace fsdp::formats {
namespace {

// The region assumed for a bucket of Amazon until its server reports another one.
constexpr const char* kFirstRegion = "us-east-1";

bool is_expired(const HttpAnswer& answer) {
  if (answer.head.status != 400 && answer.head.status != 401 && answer.head.status != 403)
    return false;
  const std::string code = parse_s3_refusal(answer.text).code;
  return code == "ExpiredToken" || code == "ExpiredTokenException" ||
         code == "TokenRefreshRequired";
}

}  // namespace

S3Client::S3Client(S3Settings settings, std::function<Credentials(HttpClient&)> find)
    : settings_(std::move(settings)),
      credentials_([this, find = std::move(find)] { return find(http_); }) {}

std::string S3Client::region_of(const std::string& bucket) {
  const std::scoped_lock lock(mutex_);
  const auto at = regions_.find(bucket);
  if (at != regions_.end()) return at->second;
  return settings_.region.empty() ? kFirstRegion : settings_.region;
}

// Returns whether an answer says that the bucket is in another region than the request used.
bool S3Client::learn_region(const std::string& bucket, const std::string& used,
                            const HttpAnswer& answer) {
  const int status = answer.head.status;
  if (status != 301 && status != 307 && status != 400 && status != 403) return false;
  const std::string* field = answer.head.find("x-amz-bucket-region");
  std::string region = field != nullptr ? *field : parse_s3_refusal(answer.text).region;
  const bool plain = std::ranges::all_of(
      region, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
  if (region.empty() || !plain || region == used) return false;
  const std::scoped_lock lock(mutex_);
  regions_[bucket] = std::move(region);
  return true;
}

HttpRequest S3Client::signed_request(const S3Request& request, const Address& address,
                                     const std::string& region,
                                     const Credentials& credentials) const {
  HttpRequest out;
  out.method = request.method;
  out.url = address.text();
  out.fields = request.fields;
  out.body = request.body;
  out.stall = request.stall;
  out.though_interrupted = request.though_interrupted;
  out.once = request.once;
  if (settings_.requester_pays) out.fields.emplace_back("x-amz-request-payer", "requester");
  if (!credentials.id.empty()) {
    // Without TLS the signature must protect the body.
    const bool open = address.scheme != "https";
    sign(out, address, credentials,
         {region, "s3", open || request.body.empty() ? sha256_text(request.body) : kUnsignedPayload,
          wall_seconds()});
  }
  return out;
}

HttpAnswer S3Client::send(Patience& patience, S3Request request, HttpSink* sink,
                          std::size_t max_text, const std::function<void(S3Request&)>& describe) {
  const bool only_head = request.method == "HEAD";
  const bool reads = request.method == "GET" || only_head;
  bool looked_again = false;
  bool moved = false;
  std::string region;
  Address home;
  Credentials credentials;
  const auto go_home = [&] {
    region = region_of(request.place.bucket);
    home = s3_address(settings_, region, request.place, request.query);
    credentials = credentials_.current();
    return home;
  };
  Address address = go_home();
  for (int hop = 0;;) {
    HttpAnswer answer = exchange(
        http_, patience, dialect_,
        [&] {
          if (describe) describe(request);
          const bool at_home = address.scheme == home.scheme && address.authority == home.authority;
          // Credentials are sent only to the bucket's own address.
          return signed_request(request, address, region, at_home ? credentials : Credentials());
        },
        sink, max_text);
    if (answer.succeeded()) return answer;
    if (!moved && learn_region(request.place.bucket, region, answer)) {
      moved = true;
      address = go_home();
      continue;
    }
    if (!looked_again && is_expired(answer)) {
      looked_again = true;
      credentials_.forget(credentials);
      address = go_home();
      continue;
    }
    const int status = answer.head.status;
    if (only_head && request.method == "HEAD" &&
        (status == 400 || status == 401 || status == 403)) {
      request.method = "GET";
      request.fields.emplace_back("range", "bytes=0-0");
      continue;
    }
    if (!reads) return answer;
    auto next = next_address(patience.place(), address, answer.head, hop++);
    if (!next) return answer;
    address = *std::move(next);
  }
}

std::optional<HttpAnswer> S3Client::try_to_send(S3Request request) noexcept {
  constexpr int kTriesInHaste = 3;
  for (int tries = 0; tries < kTriesInHaste; ++tries) {
    try {
      request.though_interrupted = true;
      const std::string region = region_of(request.place.bucket);
      const Address address = s3_address(settings_, region, request.place, request.query);
      HttpRequest message = signed_request(request, address, region, credentials_.current());
      message.timeout = std::chrono::seconds(3);
      HttpAnswer answer = http_.send(message, nullptr);
      if (!dialect_.passes(answer)) return answer;
    } catch (...) {  // NOLINT(bugprone-empty-catch): the next try, or nobody, does it
    }
  }
  return std::nullopt;
}

}  // namespace fsdp::formats
