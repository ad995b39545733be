// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/int.h"

#include <cstddef>

namespace fsdp::formats {
namespace {

bool has_sign_bit(char byte) {
  return (static_cast<unsigned char>(byte) & 0x80U) != 0;
}

std::string_view without_repeated_sign(std::string_view bytes) {
  while (bytes.size() > 1 &&
         bytes.back() == (has_sign_bit(bytes[bytes.size() - 2]) ? '\xff' : '\0')) {
    bytes.remove_suffix(1);
  }
  return bytes;
}

}  // namespace

Value decode_long(std::string_view bytes) {
  bytes = without_repeated_sign(bytes);
  if (bytes.size() > sizeof(std::int64_t)) return Value::big_int(std::string(bytes));
  std::uint64_t number = !bytes.empty() && has_sign_bit(bytes.back()) ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    number = number << 8U | static_cast<unsigned char>(bytes[i]);
  }
  return Value::integer(static_cast<std::int64_t>(number));
}

std::string encode_long(std::int64_t number) {
  std::string bytes;
  for (unsigned i = 0; i < sizeof(number); ++i) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i)));
  }
  return std::string(without_repeated_sign(bytes));
}

}  // namespace fsdp::formats
