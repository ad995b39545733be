// SPDX-License-Identifier: Apache-2.0
// Where a bucket is, and how a file in it is asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/bytes/http/address.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/remote/profile_files.h"

namespace fsdp::formats {

// How the requests name the bucket: by kind kAuto in the host where it is Amazon's and the name has
// no dots, which certificates of hosts do not cover; else in the path.
enum class S3Style { kAuto, kPath, kVirtual };

struct S3Settings {
  std::optional<Address> endpoint;  // nullopt: Amazon's, of the region
  std::string region;               // empty: not known
  S3Style style = S3Style::kAuto;
  bool requester_pays = false;
};

// From AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
// FSDP_CKPT_REQUEST_PAYER, then the profile.
// Throws: kUsage for a value that makes no sense.
S3Settings amazon_settings(const Profile& profile);
// The same interface at Google: GS_ENDPOINT_URL, else https://storage.googleapis.com.
S3Settings google_settings();

struct S3Place {
  std::string bucket;
  std::string key;  // empty: the bucket itself
};

// Takes "s3://bucket/key" apart.  Throws: kUsage if that names no bucket.
S3Place s3_place(const std::string& url);

// Where requests about `place` go.
Address s3_address(const S3Settings& settings, const std::string& region, const S3Place& place,
                   const Query& query);

}  // namespace fsdp::formats
