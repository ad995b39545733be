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

// The digest of a body that TLS protects alone.
constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct SignatureScope {
  std::string region;
  std::string service = "s3";
  std::string payload;       // the SHA-256 of the body in hexadecimal, or kUnsignedPayload
  std::int64_t seconds = 0;  // the time of the request
};

// Adds the fields of a signature over the method, `address`, and every field that `request` has.
// Requires: names of fields in lower case; a path and a query that are encoded and sorted as
// encoding.h does; `request.url` is that of `address`.
void sign(HttpRequest& request, const Address& address, const Credentials& credentials,
          const SignatureScope& scope);

}  // namespace fsdp::formats
