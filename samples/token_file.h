// SPDX-License-Identifier: Apache-2.0
// Text as numbers: a file of little-endian 16-bit tokens; a step reads only the part it needs.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <ATen/core/Tensor.h>

class TokenFile {
 public:
  // Reads the whole file once, to check that every token is below `vocabulary`.
  // Throws: std::runtime_error if the file cannot be read, has an odd length, is too short for
  // sequences of `length` tokens and their targets, or holds another token.
  TokenFile(std::string path, std::int64_t vocabulary, std::int64_t length);

  std::int64_t count() const noexcept { return count_; }

  // Returns sequences `first`, ..., `first + batch - 1` of the file, which repeats endlessly:
  // [batch, length + 1], int64; targets are one token after the inputs.
  at::Tensor sequences(std::int64_t first, std::int64_t batch);

 private:
  std::string path_;
  std::ifstream file_;
  std::int64_t length_;
  std::int64_t count_ = 0;
};
