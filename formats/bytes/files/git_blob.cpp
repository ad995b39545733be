// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/git_blob.h"

#include <nettle/sha1.h>

#include <array>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

struct GitBlobDigest::State {
  sha1_ctx context;
};

GitBlobDigest::GitBlobDigest(std::uint64_t bytes) : state_(std::make_unique<State>()) {
  sha1_init(&state_->context);
  const std::string head = cat("blob ", bytes, std::string(1, '\0'));
  add(std::as_bytes(std::span(head)));
}

GitBlobDigest::~GitBlobDigest() = default;

void GitBlobDigest::add(std::span<const std::byte> bytes) {
  sha1_update(&state_->context, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
}

std::string GitBlobDigest::finish() {
  std::array<std::uint8_t, SHA1_DIGEST_SIZE> digest{};
  sha1_digest(&state_->context, digest.size(), digest.data());
  std::string text;
  for (std::size_t i = 0; i < digest.size(); i += 4) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 4; ++j) word = word << 8U | digest[i + j];
    text += hex32(word);
  }
  return text;
}

}  // namespace fsdp::formats
