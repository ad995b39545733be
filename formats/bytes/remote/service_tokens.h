// SPDX-License-Identifier: Apache-2.0
// Tokens by which services know who asks.
#pragma once

#include <cstdint>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/secret.h"

namespace fsdp::formats {

// The text of a file with a token, without the end of its line.
// Throws: kAccess if it cannot be read; kUsage if it holds anything else.
Secret read_token(const std::string& path);
// Refuses what would show a token to whoever is on the way.  `what`: "the token service".
// Throws: kUsage.
void require_private(const Address& address, const std::string& what);
// The error of an answer of `what` without credentials.
Error no_credentials(const std::string& what);
// "2030-01-01T00:00:00Z" in seconds since the epoch; 0 for anything else.
std::int64_t expiry_of(const std::string& text);

}  // namespace fsdp::formats
