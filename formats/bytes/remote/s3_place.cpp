// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_place.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMostBucket = 255;
constexpr std::size_t kMostKey = 1024;

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return {};
}

bool is_name_of_host(std::string_view text) {
  return !text.empty() && text != "." && text != ".." && std::ranges::all_of(text, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

std::optional<Address> endpoint_of(const std::string& value, std::string_view source) {
  if (value.empty()) return std::nullopt;
  auto address = parse_address(value);
  if (!address || address->target.find('?') != std::string::npos) {
    throw Error(ErrorCode::kUsage, source,
                " is not an https or http URL without user name, password and query");
  }
  while (address->target.ends_with('/')) address->target.pop_back();
  return address;
}

}  // namespace

S3Settings amazon_settings(const Profile& profile) {
  S3Settings settings;
  settings.region = first_of({environment_value("AWS_REGION"),
                              environment_value("AWS_DEFAULT_REGION"), profile.find("region")});
  if (!settings.region.empty() && !is_name_of_host(settings.region)) {
    throw Error(ErrorCode::kUsage, "the region is ", quote(settings.region),
                ", but may have only letters, digits and hyphens");
  }
  if (environment_value("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") != "true") {
    const std::pair<const char*, std::string> sources[] = {
        {"AWS_ENDPOINT_URL_S3", environment_value("AWS_ENDPOINT_URL_S3")},
        {"AWS_ENDPOINT_URL", environment_value("AWS_ENDPOINT_URL")},
        {"endpoint_url of s3 in the profile", profile.find("s3.endpoint_url")},
        {"endpoint_url in the profile", profile.find("endpoint_url")}};
    for (const auto& [name, value] : sources) {
      if (!settings.endpoint) settings.endpoint = endpoint_of(value, name);
    }
  }
  const std::string style = profile.find("s3.addressing_style");
  if (style == "path") settings.style = S3Style::kPath;
  if (style == "virtual") settings.style = S3Style::kVirtual;
  const std::string payer = environment_value("FSDP_CKPT_REQUEST_PAYER");
  if (!payer.empty() && payer != "requester") {
    throw Error(ErrorCode::kUsage, "FSDP_CKPT_REQUEST_PAYER is ", quote(payer),
                " instead of 'requester'");
  }
  settings.requester_pays = !payer.empty();
  return settings;
}

S3Settings google_settings() {
  S3Settings settings;
  const std::string named = environment_value("GS_ENDPOINT_URL");
  settings.endpoint =
      endpoint_of(named.empty() ? "https://storage.googleapis.com" : named, "GS_ENDPOINT_URL");
  settings.region = "auto";
  return settings;
}

S3Place s3_place(const std::string& url) {
  const std::size_t begin = url.find("://") + 3;
  const std::size_t slash = std::min(url.find('/', begin), url.size());
  S3Place place{url.substr(begin, slash - begin), {}};
  if (!is_name_of_host(place.bucket) || place.bucket.size() > kMostBucket) {
    throw Error(ErrorCode::kUsage, escape(url), ": does not name a bucket: ", quote(place.bucket),
                " is not made of letters, digits, dots, hyphens and underscores");
  }
  if (slash < url.size()) place.key = url.substr(slash + 1);
  if (place.key.size() > kMostKey) {
    throw Error(ErrorCode::kUsage, escape(url), ": the key has ", place.key.size(),
                " bytes, but stores accept at most ", kMostKey);
  }
  return place;
}

Address s3_address(const S3Settings& settings, const std::string& region, const S3Place& place,
                   const Query& query) {
  const bool dots = place.bucket.find('.') != std::string::npos;
  const bool in_path = settings.style == S3Style::kPath ||
                       (settings.style == S3Style::kAuto && (settings.endpoint || dots));
  const bool china = region.starts_with("cn-");
  Address address =
      settings.endpoint
          ? *settings.endpoint
          : Address{"https", cat("s3.", region, ".amazonaws.com", china ? ".cn" : ""), ""};
  if (in_path) {
    address.target += '/' + encode_path(place.bucket);
    if (!place.key.empty()) address.target += '/' + encode_path(place.key);
  } else {
    address.authority.insert(0, place.bucket + ".");
    address.target += '/' + encode_path(place.key);
  }
  if (!query.empty()) address.target += '?' + encode_query(query);
  return address;
}

}  // namespace fsdp::formats
