// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/cat.h"

#include <charconv>
#include <cstdio>

namespace fsdp::formats {

TextPart::TextPart(bool is_negative, std::uint64_t number) noexcept {
  char* begin = buffer_.data();
  if (is_negative) *begin++ = '-';
  const auto end = std::to_chars(begin, buffer_.data() + buffer_.size(),
                                 is_negative ? std::uint64_t{0} - number : number);
  text_ = {buffer_.data(), end.ptr};
}

TextPart::TextPart(double number) noexcept {
  const int length = std::snprintf(buffer_.data(), buffer_.size(), "%g", number);
  text_ = {buffer_.data(), static_cast<std::size_t>(length)};
}

std::string joined(std::initializer_list<TextPart> parts) {
  std::size_t size = 0;
  for (const TextPart& part : parts) size += part.text().size();
  std::string text;
  text.reserve(size);
  for (const TextPart& part : parts) text += part.text();
  return text;
}

}  // namespace fsdp::formats
