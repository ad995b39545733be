// SPDX-License-Identifier: Apache-2.0
// Prints the result of `diff` for users.
#pragma once

#include <cstddef>
#include <vector>

#include "tools/verbs/comparing/change.h"
#include "tools/verbs/comparing/comparison.h"

namespace fsdp::cli {

struct DiffListing {
  std::size_t limit;  // rows
  bool fold;          // also of keys: one row for numbered layers
  ChangeUnit unit;    // what `changes` are about
};

// Prints the differences and a summary; nothing if the checkpoints are the same and --quiet is
// given.
void print_diff_text(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& changes, const DiffListing& listing,
                     const Streams& streams);

}  // namespace fsdp::cli
