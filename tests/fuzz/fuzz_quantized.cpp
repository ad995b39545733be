// SPDX-License-Identifier: Apache-2.0
// Any configuration of quantized weights beside any tensors: what is accepted is dequantized.
// Input: the configuration, a zero byte, the header of a safetensors file, a zero byte, its data;
// tensors that the data do not reach are zeros.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/quantized/dequantize.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/safetensors/texts.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::uint64_t kMostBytes = 1U << 24U;
constexpr std::uint64_t kMostNumbers = 1U << 16U;

// A file in memory, which has a path.
class MemoryFile {
 public:
  MemoryFile() : number_(memfd_create("model.safetensors", MFD_CLOEXEC)) {
    if (number_ < 0) std::abort();
  }
  ~MemoryFile() { close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }
  void write(std::string_view bytes) {
    if (::write(number_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  void resize(std::uint64_t bytes) {
    if (ftruncate(number_, static_cast<off_t>(bytes)) != 0) std::abort();
  }

 private:
  int number_;
};

std::string_view part(std::string_view& text) {
  const std::size_t end = std::min(text.find('\0'), text.size());
  const std::string_view out = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return out;
}

void fuzz(std::string_view text) {
  const std::string_view config = part(text);
  const std::string_view header = part(text);
  try {
    Settings settings = read_settings(parse_json(config), "config.json");
    MemoryFile file;
    const std::uint64_t length = header.size();
    char bytes[sizeof length];
    std::memcpy(bytes, &length, sizeof length);
    file.write({bytes, sizeof bytes});
    file.write(header);
    file.resize(kMostBytes);
    const safetensors::Header read =
        safetensors::read_header(*file_at(file.path()), 0, safetensors::Trailing::kAllow);
    file.write(text.substr(0, read.end - read.data_offset));
    file.resize(read.end);
    const auto source = safetensors::open_file(file.path());
    settings.texts = safetensors::texts_of(*source);
    const DequantizedModel model =
        dequantized_model(*source, content_of(*source), settings, DType::kFloat32);
    arrays::ArraySource tensors(*model.checkpoint);
    std::vector<float> numbers;
    for (const auto& [key, value] : members_of(model.content)) {
      const arrays::Array array = tensors.array(*tensor_number(value));
      if (arrays::numel_of(array) > kMostNumbers) continue;
      numbers.resize(arrays::numel_of(array));
      arrays::ArrayReader(array).read_as(DType::kFloat32, 0,
                                         std::as_writable_bytes(std::span(numbers)));
    }
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats::quantized

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fsdp::formats::quantized::fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
