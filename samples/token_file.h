// SPDX-License-Identifier: Apache-2.0
// Text as numbers: a file of little-endian 16-bit tokens, of which only what a step needs is read.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <ATen/core/Tensor.h>

class TokenFile {
 public:
  // Reads the whole file once, to see that every token is below `vocabulary`.
  // Throws: std::runtime_error where the file cannot be read, has an odd length, is too short for
  // sequences of `length` tokens and their targets, or holds another token.
  TokenFile(std::string path, std::int64_t vocabulary, std::int64_t length);

  std::int64_t count() const noexcept { return count_; }

  // Sequences `first`, ..., `first + batch - 1` of the endless row of sequences that the file is
  // read as: [batch, length + 1], int64; targets are one token further than inputs.
  at::Tensor sequences(std::int64_t first, std::int64_t batch);

 private:
  std::string path_;
  std::ifstream file_;
  std::int64_t length_;
  std::int64_t count_ = 0;
};
