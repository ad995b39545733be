// SPDX-License-Identifier: Apache-2.0
// Keys of numbered layers that are alike, as one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/state/model/index.h"

namespace fsdp::cli {

struct FoldedKey {
  std::string name;                  // "layers.{0..31}.weight"; of one member its key
  std::vector<std::size_t> members;  // positions in Index::tensors
};

// Folds the tensors of an index as `inspect` does (see key_tree), in natural order of their names.
// Tensors of the same key are not told apart; then nothing is folded.
std::vector<FoldedKey> folded_keys(const formats::Index& index);

// Returns the part of `key` in place of the range "{...}" of `name`; the whole key if `name` has
// more ranges, or none.
std::string folded_part(const std::string& name, const std::string& key);

}  // namespace fsdp::cli
