// SPDX-License-Identifier: Apache-2.0
// A text put together from parts.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// An integer that is neither bool nor a character.
template <typename T>
concept TextNumber = std::integral<T> && sizeof(T) != 1;

// A text, a character or a number in decimal, as an argument of cat().
class TextPart : NotCopied {
 public:
  explicit TextPart(std::string_view text) noexcept : text_(text) {}
  explicit TextPart(const std::string& text) noexcept : text_(text) {}
  explicit TextPart(const char* text) noexcept : text_(text) {}
  explicit TextPart(char character) noexcept : text_(buffer_.data(), 1) { buffer_[0] = character; }
  explicit TextPart(double number) noexcept;  // with six digits
  template <TextNumber Number>
  explicit TextPart(Number number) noexcept
      : TextPart(std::is_signed_v<Number> && number < 0, static_cast<std::uint64_t>(number)) {}

  std::string_view text() const noexcept { return text_; }

 private:
  // `number`: the number modulo 2^64.
  TextPart(bool is_negative, std::uint64_t number) noexcept;

  std::array<char, 24> buffer_;
  std::string_view text_;
};

template <typename T>
concept IsTextPart = std::is_constructible_v<TextPart, const T&>;

// Returns the parts one after the other.
std::string joined(std::initializer_list<TextPart> parts);

// Returns the arguments one after the other: cat("at byte ", 12) == "at byte 12".
template <typename... Args>
std::string cat(const Args&... args) {
  return joined({TextPart(args)...});
}

}  // namespace fsdp::formats
