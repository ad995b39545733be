// SPDX-License-Identifier: Apache-2.0
#include "samples/token_file.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace {

std::int64_t token_at(const std::vector<unsigned char>& bytes, std::size_t index) {
  return bytes[2 * index] | bytes[2 * index + 1] << 8;
}

}  // namespace

TokenFile::TokenFile(std::string path, std::int64_t vocabulary, std::int64_t length)
    : path_(std::move(path)), file_(path_, std::ios::binary), length_(length) {
  const auto fail = [&](const std::string& message) {
    throw std::runtime_error(path_ + ": " + message);
  };
  constexpr std::size_t kBufferBytes = 1 << 20;
  std::vector<unsigned char> buffer(kBufferBytes);
  if (!file_) fail("cannot be opened");
  while (true) {
    file_.read(reinterpret_cast<char*>(buffer.data()), kBufferBytes);
    const auto bytes = static_cast<std::size_t>(file_.gcount());
    if (bytes % 2 != 0) fail("an odd number of bytes, but tokens have two each");
    for (std::size_t i = 0; i < bytes / 2; ++i) {
      if (token_at(buffer, i) >= vocabulary) {
        fail("token " + std::to_string(token_at(buffer, i)) + " at " +
             std::to_string(count_ + static_cast<std::int64_t>(i)) + " is not below --vocab " +
             std::to_string(vocabulary));
      }
    }
    count_ += static_cast<std::int64_t>(bytes / 2);
    if (file_.bad() || (bytes == 0 && count_ == 0)) fail("is empty or cannot be read");
    if (bytes < kBufferBytes) break;
  }
  if (count_ < length_ + 2) {
    fail(std::to_string(count_) + " tokens, but --seq " + std::to_string(length_) +
         " needs at least " + std::to_string(length_ + 2));
  }
}

at::Tensor TokenFile::sequences(std::int64_t first, std::int64_t batch) {
  const auto width = static_cast<std::size_t>(length_ + 1);
  std::vector<unsigned char> bytes(2 * width);
  at::Tensor tokens = at::empty({batch, length_ + 1}, at::kLong);
  auto* out = tokens.data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    file_.clear();
    file_.seekg(2 * ((first + b) * length_ % (count_ - length_ - 1)));
    file_.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (file_.gcount() != static_cast<std::streamsize>(bytes.size()))
      throw std::runtime_error(path_ + ": became shorter while it was read");
    for (std::size_t i = 0; i < width; ++i) *out++ = token_at(bytes, i);
  }
  return tokens;
}
