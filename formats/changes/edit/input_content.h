// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are combined key by key: the leaves of each one under their keys, for all
// formats and layouts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

struct InputContent {
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;                        // of content_of, without leaves left out
  std::map<std::string, Leaf> leaves;   // of `content`, by their keys
  std::uint64_t optimizer_tensors = 0;  // left out

  const std::string& path() const { return checkpoint->description().path; }
  // Returns a description of the leaf for messages: "float32 [3, 4]", "a value".
  std::string text_of(const Leaf& leaf) const;
};

struct InputChoice {
  std::function<bool(const std::string& key)> wanted;
  bool with_optimizer = false;  // states of optimizers as well
  std::function<bool()> cancelled;
  Team* team = &this_process();  // see check_before_copy; never null
};

// Returns the contents of the checkpoints.  A value that one of them stores key by key is taken
// apart in the others; tensors inside values are taken out in all of them.
// Throws: damage, as check_before_copy does; kMismatch if two entries of one checkpoint have the
// same key; kNotFound if no leaf of a checkpoint is left.
std::vector<InputContent> input_contents(std::vector<std::unique_ptr<Checkpoint>> checkpoints,
                                         const InputChoice& choice);

// Checks that all have the same keys, and under each key tensors of one shape, or values.
// Throws: kMismatch with key, shapes and the nearest name.
void check_same_keys(const std::vector<InputContent>& inputs);

}  // namespace fsdp::formats
