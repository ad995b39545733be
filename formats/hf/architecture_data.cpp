// SPDX-License-Identifier: Apache-2.0
#include "formats/hf/architecture_data.h"

#include <zlib.h>

#include <cstddef>
#include <string>

#include "formats/base/error.h"

namespace fsdp::formats::hf {

// formats/hf/architectures.bin: the size of the text as 8 bytes, the lowest first, and the text as
// a stream of zlib.  The first line is the producer; each of the others is an object of JSON that
// begins with its model type.
extern const unsigned char kArchitectures[];
extern const std::size_t kArchitecturesBytes;

namespace {

constexpr std::size_t kSizeBytes = 8;

const std::string& text() {
  static const std::string whole = [] {
    std::uint64_t size = 0;
    for (std::size_t i = kSizeBytes; i-- > 0;) size = (size << 8U) | kArchitectures[i];
    std::string out(size, '\0');
    uLongf written = size;
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): zlib takes bytes
    auto* const target = reinterpret_cast<Bytef*>(out.data());
    if (::uncompress(target, &written, kArchitectures + kSizeBytes,
                     kArchitecturesBytes - kSizeBytes) != Z_OK ||
        written != size)
      throw Error(ErrorCode::kIo, "the data of model types in this program are damaged");
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
