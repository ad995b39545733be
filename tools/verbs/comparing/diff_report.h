// SPDX-License-Identifier: Apache-2.0
// Prints the result of `diff`.
#pragma once

#include <cstddef>
#include <vector>

#include "formats/bytes/base/json_writer.h"
#include "tools/verbs/comparing/change.h"
#include "tools/verbs/comparing/comparison.h"

namespace fsdp::cli {

// Prints the result as JSON as it goes, since every tensor may differ.  `tensors`: one change for
// each tensor that differs.  `groups`: changes of modules or layers, if `unit` is one of these.
void print_diff_json(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& tensors, ChangeUnit unit,
                     const std::vector<Change>& groups, formats::JsonWriter& json);

// Prints the differences and a summary for users; nothing if the checkpoints are the same and
// --quiet is given.  `changes`: of `unit`s.  `limit`: rows.  `fold`: also of keys, one row for
// numbered layers.
void print_diff_text(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& changes, ChangeUnit unit, std::size_t limit,
                     bool fold, const Streams& streams);

}  // namespace fsdp::cli
