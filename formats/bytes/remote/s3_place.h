// SPDX-License-Identifier: Apache-2.0
// The address of a bucket and of the files in it.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/http/address.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/remote/profile_files.h"

namespace fsdp::formats {

// How requests name the bucket: in the host or in the path.  kAuto: in the host, if that is
// Amazon's and the bucket's name has no dots, which certificates do not cover; else in the path.
enum class S3Style { kAuto, kPath, kVirtual };

struct S3Settings {
  std::optional<Address> endpoint;  // nullopt: Amazon's for the region
  std::string region;               // empty: unknown
  S3Style style = S3Style::kAuto;
  bool requester_pays = false;
};

// Reads the settings from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
// FSDP_CKPT_REQUEST_PAYER, then from the profile.
// Throws: kUsage for an invalid value.
S3Settings amazon_settings(const Profile& profile);
// Returns the settings of Google's S3 interface: GS_ENDPOINT_URL, else
// https://storage.googleapis.com.
S3Settings google_settings();

struct S3Place {
  std::string bucket;
  std::string key;  // empty: the bucket itself
};

// Parses "s3://bucket/key".  Throws: kUsage if the URL names no bucket.
S3Place s3_place(const std::string& url);

// Returns the address for requests about `place`.
Address s3_address(const S3Settings& settings, const std::string& region, const S3Place& place,
                   const Query& query);

}  // namespace fsdp::formats
