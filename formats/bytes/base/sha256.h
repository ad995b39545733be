// SPDX-License-Identifier: Apache-2.0
// SHA-256, the digest in producers' lists of files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace fsdp::formats {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  // Returns the digest of all bytes added, as 64 lower-case hexadecimal digits, and starts anew.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::formats
