// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/architecture_data.h"

#include <cstddef>
#include <span>
#include <string>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/zip/decompress.h"

namespace fsdp::formats::hf {

// formats/families/hf/architectures.bin: the size of the text as a little-endian number of 8 bytes,
// then the text as a deflate stream.  The first line is the producer; each other line is a JSON
// object that begins with its model type.
extern const unsigned char kArchitectures[];
extern const std::size_t kArchitecturesBytes;

namespace {

constexpr std::size_t kSizeBytes = 8;

const std::string& text() {
  static const std::string whole = [] {
    std::uint64_t size = 0;
    for (std::size_t i = kSizeBytes; i-- > 0;) size = (size << 8U) | kArchitectures[i];
    std::string out;
    out.reserve(size);
    const MemorySource source(
        std::as_bytes(std::span(kArchitectures, kArchitecturesBytes).subspan(kSizeBytes)));
    formats::inflate(source, size, [&](std::span<const std::byte> bytes) {
      for (const std::byte byte : bytes) out.push_back(static_cast<char>(byte));
    });
    return out;
  }();
  return whole;
}

}  // namespace

std::string_view architecture_producer() {
  return std::string_view(text()).substr(0, text().find('\n'));
}

std::optional<Json> architecture_data(std::string_view model_type) {
  // A name with a quote would end the text that is searched for.
  if (model_type.find_first_of("\"\n\\") != std::string_view::npos) return std::nullopt;
  const std::string begin = "\n{\"type\":\"" + std::string(model_type) + "\",";
  const std::size_t at = text().find(begin);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t end = text().find('\n', at + 1);
  return parse_json(std::string_view(text()).substr(at + 1, end - at - 1));
}

}  // namespace fsdp::formats::hf
