// SPDX-License-Identifier: Apache-2.0
// Tells whether options or states of an optimizer are equal.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Compares values of `content_of` a checkpoint: plain ones, placeholders, and single-number
// tensors, such as learning rates.  Reads each once.  Lifetime: the checkpoint outlives it.
class OptionEquality {
 public:
  explicit OptionEquality(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  // Throws: kLimitSize for a tensor of more than 64 KiB; what reading throws.
  bool operator()(const Value& a, const Value& b) { return content_of(a) == content_of(b); }

 private:
  std::string content_of(const Value& value);
  std::string tensor_content(std::size_t number) const;

  const Checkpoint& checkpoint_;
  std::unordered_map<std::size_t, std::string> known_;
};

}  // namespace fsdp::formats
