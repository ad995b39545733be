// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4.
// Source: "Signature Version 4 for API requests" in the user guide of AWS Identity and Access
// Management, and "Authenticating Requests" in the API reference of Amazon S3.
#pragma once

#include <cstdint>
#include <string>

#include "formats/bytes/http/address.h"
#include "formats/bytes/http/http.h"
#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// Stands for the digest of a body that only TLS protects.
constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct SignatureScope {
  std::string region;
  std::string service = "s3";
  std::string payload;       // the SHA-256 of the body in hexadecimal, or kUnsignedPayload
  std::int64_t seconds = 0;  // the time of the request
};

// Signs the request: adds fields with a signature over the method, `address` and all fields of
// `request`.
// Requires: field names are in lower case; path and query are encoded and sorted as encoding.h
// does; `request.url` is that of `address`.
void sign(HttpRequest& request, const Address& address, const Credentials& credentials,
          const SignatureScope& scope);

}  // namespace fsdp::formats
