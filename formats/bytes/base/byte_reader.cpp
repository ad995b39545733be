// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/byte_reader.h"

#include <cassert>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  assert(at + sizeof(T) <= bytes.size());
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[at + i]) << (8 * i)));
  return value;
}

}  // namespace

std::uint16_t load_u16(std::span<const std::byte> bytes, std::size_t at) {
  return load<std::uint16_t>(bytes, at);
}
std::uint32_t load_u32(std::span<const std::byte> bytes, std::size_t at) {
  return load<std::uint32_t>(bytes, at);
}
std::uint64_t load_u64(std::span<const std::byte> bytes, std::size_t at) {
  return load<std::uint64_t>(bytes, at);
}

std::span<const std::byte> ByteReader::take(std::uint64_t count, std::string_view what) {
  if (count > remaining()) {
    throw Error(ErrorCode::kTruncated, what, " needs ", count, count == 1 ? " byte" : " bytes",
                " at byte ", offset(), ", but only ", remaining(), " remain");
  }
  const auto result = bytes_.subspan(at_, static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return result;
}

std::uint8_t ByteReader::u8(std::string_view what) {
  return static_cast<std::uint8_t>(take(1, what)[0]);
}
std::uint16_t ByteReader::u16(std::string_view what) {
  return load_u16(take(2, what), 0);
}
std::uint32_t ByteReader::u32(std::string_view what) {
  return load_u32(take(4, what), 0);
}
std::uint64_t ByteReader::u64(std::string_view what) {
  return load_u64(take(8, what), 0);
}

std::string_view ByteReader::text(std::uint64_t count, std::string_view what) {
  const auto bytes = take(count, what);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace fsdp::formats
