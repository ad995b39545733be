// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a safetensors file; bytes that begin with '{' as its header only.  Accepted
// input is written again and must read back as the same.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/families/safetensors/file.h"
#include "formats/families/safetensors/index.h"

namespace fsdp::formats::safetensors {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Text followed by as many zero bytes as any tensor could need.
class Padded : public ByteSource {
 public:
  explicit Padded(std::string text) : text_(std::move(text)) {}
  std::uint64_t size() const override { return UINT64_MAX; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
    if (offset >= text_.size()) return;
    const std::size_t count = std::min<std::size_t>(out.size(), text_.size() - offset);
    std::memcpy(out.data(), text_.data() + offset, count);
  }

 private:
  std::string text_;
};

std::string with_length(std::span<const std::byte> header) {
  std::string out;
  for (unsigned i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  return out.append(reinterpret_cast<const char*>(header.data()), header.size());
}

void check_promises(const Header& header) {
  std::uint64_t end = header.data_offset;
  for (const Tensor& tensor : header.tensors) {
    require(tensor.begin == end);
    end += tensor.bytes;
  }
  require(end == header.end);
  try {
    const auto offsets = saved_offsets(header);
    if (offsets) require(offsets->size() == header.tensors.size());
  } catch (const Error&) {
  }
}

void write_and_read_back(const Header& header) {
  std::vector<Tensor> tensors = header.tensors;
  const std::string start = make_header(tensors, header.metadata);
  const Header again = read_header(Padded(start), 0, Trailing::kAllow);
  require(again.data_offset == start.size());
  require(again.end - again.data_offset == header.end - header.data_offset);
  require(again.metadata == header.metadata);
  require(again.tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& was = header.tensors[i];
    const Tensor& is = again.tensors[i];
    require(is.name == was.name && is.dtype == was.dtype && is.shape == was.shape);
    require(is.bytes == was.bytes && is.begin == tensors[i].begin);
  }
}

// Returns nullopt if the bytes are refused.
std::optional<Header> read(std::span<const std::byte> bytes) {
  try {
    if (bytes.empty() || bytes[0] != std::byte{'{'}) return read_header(MemorySource(bytes));
    return read_header(Padded(with_length(bytes)), 0, Trailing::kAllow);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void fuzz(std::span<const std::byte> bytes) {
  const std::optional<Header> header = read(bytes);
  if (!header) return;
  check_promises(*header);
  write_and_read_back(*header);  // the writer refuses nothing that the reader accepts
}

}  // namespace
}  // namespace fsdp::formats::safetensors

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::safetensors::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
