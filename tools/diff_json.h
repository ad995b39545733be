// SPDX-License-Identifier: Apache-2.0
// The result of `diff` for programs.
#pragma once

#include <iosfwd>
#include <vector>

#include "tools/change.h"
#include "tools/comparison.h"

namespace fsdp::cli {

// `tensors`: one change for each tensor that differs.  `groups`: changes of modules or layers where
// `unit` is one.  Written as it goes: there may be a difference for every tensor.
void print_diff_json(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& tensors, ChangeUnit unit,
                     const std::vector<Change>& groups, std::ostream& out);

}  // namespace fsdp::cli
