// SPDX-License-Identifier: Apache-2.0
// Prints the result of `diff` as JSON.
#pragma once

#include <iosfwd>
#include <vector>

#include "tools/verbs/comparing/change.h"
#include "tools/verbs/comparing/comparison.h"

namespace fsdp::cli {

// Prints the result as it goes, since every tensor may differ.  `tensors`: one change for each
// tensor that differs.  `groups`: changes of modules or layers, if `unit` is one of these.
void print_diff_json(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& tensors, ChangeUnit unit,
                     const std::vector<Change>& groups, std::ostream& out);

}  // namespace fsdp::cli
