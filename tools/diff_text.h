// SPDX-License-Identifier: Apache-2.0
// The result of `diff` for people.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/change.h"
#include "tools/comparison.h"

namespace fsdp::cli {

struct DiffListing {
  std::size_t limit;  // rows
  bool fold;          // of keys as well: those of numbered layers in one row
  ChangeUnit unit;    // of `changes`
};

// The differences and a summary; nothing where the checkpoints are the same and the user wants no
// words.
void print_diff_text(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& changes, const DiffListing& listing,
                     const Streams& streams);

}  // namespace fsdp::cli
