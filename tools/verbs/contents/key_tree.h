// SPDX-License-Identifier: Apache-2.0
// The keys of a checkpoint as a tree of modules, with totals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/state/model/index.h"

namespace fsdp::cli {

struct KeyNode {
  std::string name;  // one part of a key, or several joined by dots if nothing branches
  std::vector<std::unique_ptr<KeyNode>> children;  // in natural order of their names
  const formats::TensorEntry* tensor = nullptr;
  const formats::ValueEntry* value = nullptr;
  std::size_t copies = 1;  // number of equal subtrees that this one represents (fold)
  // `tensor`, and with fold those at the same place of the subtrees that this one represents.
  std::vector<const formats::TensorEntry*> alike;
  // Totals of the node and everything below, over all copies.
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  std::uint64_t numel = 0;
  std::uint64_t bytes = 0;
};

// Builds the tree.  Keys are split at their dots.  `fold`: numbered siblings with equal subtrees
// (names, dtypes, shapes) become one node "{0..11}". Lifetime: the index outlives the tree.
std::unique_ptr<KeyNode> key_tree(const formats::Index& index, bool fold);

}  // namespace fsdp::cli
