// SPDX-License-Identifier: Apache-2.0
// Text that must not be shown: keys, tokens.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>

namespace fsdp::formats {

// Cannot be streamed, compared or turned into text by accident.  Clears its bytes at destruction.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  Secret(const Secret&) = default;
  Secret(Secret&& other) noexcept : text_(std::move(other.text_)) { other.clear(); }
  Secret& operator=(const Secret& other) {
    if (this != &other) *this = Secret(other);
    return *this;
  }
  Secret& operator=(Secret&& other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~Secret() { clear(); }

  bool empty() const { return text_.empty(); }
  // For a signature or a header of a request, and for nothing else.
  const std::string& reveal() const { return text_; }

 private:
  void clear() noexcept {
    // A text that was moved away may have left its bytes behind the new end.
    text_.resize(text_.capacity());
    // volatile: the compiler may drop writes that are never read.
    volatile char* bytes = text_.data();
    for (std::size_t i = 0; i < text_.size(); ++i) bytes[i] = 0;
    text_.clear();
  }

  std::string text_;
};

std::ostream& operator<<(std::ostream&, const Secret&) = delete;

}  // namespace fsdp::formats
