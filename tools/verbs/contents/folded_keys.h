// SPDX-License-Identifier: Apache-2.0
// Joins the keys of numbered layers that are alike.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/state/model/index.h"

namespace fsdp::cli {

struct FoldedKey {
  std::string name;                  // "layers.{0..31}.weight"; with one member, its key
  std::vector<std::size_t> members;  // positions in Index::tensors
};

// Folds the tensors of an index as `inspect` does (see key_tree), in natural order of their names.
// Folds nothing if several tensors have the same key.
std::vector<FoldedKey> folded_keys(const formats::Index& index);

// Returns the part of `key` at the place of the range "{...}" in `name`; the whole key unless
// `name` has exactly one range.
std::string folded_part(const std::string& name, const std::string& key);

}  // namespace fsdp::cli
