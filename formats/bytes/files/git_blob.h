// SPDX-License-Identifier: Apache-2.0
// The digest by which git names the content of a file: SHA-1 of "blob ", the size, a NUL and the
// bytes.  It detects accidents; two contents with one digest can be made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace fsdp::formats {

class GitBlobDigest {
 public:
  // `bytes`: of the whole content.
  explicit GitBlobDigest(std::uint64_t bytes);
  ~GitBlobDigest();
  void add(std::span<const std::byte> bytes);
  // Returns 40 lower-case hexadecimal digits.  Requires: `bytes` bytes were added; called once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::formats
