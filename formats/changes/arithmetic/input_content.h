// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are combined key by key: each one's leaves under their keys, whatever its format
// and layout.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

struct InputContent {
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;                        // of content_of, without what was left out
  std::map<std::string, Leaf> leaves;   // of `content`, by their keys
  std::uint64_t optimizer_tensors = 0;  // left out

  const std::string& path() const { return checkpoint->description().path; }
  // Returns the leaf as people know it: "float32 [3, 4]", "a value".
  std::string text_of(const Leaf& leaf) const;
};

struct InputChoice {
  std::function<bool(const std::string& key)> wanted;
  bool with_optimizer = false;  // states of optimizers as well
  std::function<bool()> cancelled;
  Team* team = nullptr;  // see check_before_copy
};

// Opens the contents of the checkpoints.  Values that one of them keeps key by key are taken apart
// in the others, and tensors inside values everywhere.
// Throws: damage, like check_before_copy; kMismatch if two entries of one checkpoint have the same
// key; kNotFound if nothing is left of one.
std::vector<InputContent> input_contents(std::vector<std::unique_ptr<Checkpoint>> checkpoints,
                                         const InputChoice& choice);

// Checks that all have the same keys, and under each key tensors of one shape, or values.
// Throws: kMismatch with key, shapes and the nearest name.
void check_same_keys(const std::vector<InputContent>& inputs);

}  // namespace fsdp::formats
