// SPDX-License-Identifier: Apache-2.0
// The digests in requests to object stores.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Returns 32 raw bytes [RFC 2104].
std::string hmac_sha256(std::string_view key, std::string_view text);
// Returns 64 lower-case hexadecimal digits.
std::string sha256_text(std::span<const std::byte> bytes);
std::string sha256_text(std::string_view text);
// Returns 16 raw bytes, for Content-MD5 (with which a store detects damage in transit) and for the
// ETag.
std::string md5(std::span<const std::byte> bytes);

std::string hex_text(std::string_view bytes);
std::string base64_text(std::string_view bytes);

}  // namespace fsdp::formats
