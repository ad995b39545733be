// SPDX-License-Identifier: Apache-2.0
// Tokens that authenticate requests to services.
#pragma once

#include <cstdint>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/patience.h"
#include "formats/bytes/http/secret.h"

namespace fsdp::formats {

// Returns the text of a token file without its final newline.
// Throws: kAccess if the file cannot be read; kUsage for any other content.
Secret read_token(const std::string& path);
// Returns the limits for requests to services of credentials: fewer tries than usual.
NetworkLimits service_limits();
// Refuses an address that would expose a token in transit.  `what` is for messages: "the token
// service".
// Throws: kUsage.
void require_private(const Address& address, const std::string& what);
// Returns the error for an answer of `what` without credentials.
Error no_credentials(const std::string& what);
// Converts "2030-01-01T00:00:00Z" to seconds since the epoch; returns 0 for anything else.
std::int64_t expiry_of(const std::string& text);

}  // namespace fsdp::formats
