// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/digests.h"

#include <nettle/hmac.h>
#include <nettle/md5.h>

#include <array>
#include <cstdint>

#include "formats/bytes/base/sha256.h"

namespace fsdp::formats {
namespace {

const std::uint8_t* octets(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

template <std::size_t N>
std::string text_of(const std::array<std::uint8_t, N>& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  hmac_sha256_ctx context;
  hmac_sha256_set_key(&context, key.size(), octets(key));
  hmac_sha256_update(&context, text.size(), octets(text));
  std::array<std::uint8_t, SHA256_DIGEST_SIZE> digest{};
  hmac_sha256_digest(&context, digest.size(), digest.data());
  return text_of(digest);
}

std::string sha256_text(std::span<const std::byte> bytes) {
  Sha256 sha256;
  sha256.add(bytes);
  return sha256.finish();
}

std::string sha256_text(std::string_view text) {
  return sha256_text(std::as_bytes(std::span(text.data(), text.size())));
}

std::string md5(std::span<const std::byte> bytes) {
  md5_ctx context;
  md5_init(&context);
  md5_update(&context, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
  std::array<std::uint8_t, MD5_DIGEST_SIZE> digest{};
  md5_digest(&context, digest.size(), digest.data());
  return text_of(digest);
}

std::string hex_text(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4U];
    out += kDigits[byte & 0xFU];
  }
  return out;
}

std::string base64_text(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8U | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      out += j <= count ? kAlphabet[group >> (18U - 6U * j) & 0x3FU] : '=';
  }
  return out;
}

}  // namespace fsdp::formats
