// SPDX-License-Identifier: Apache-2.0
// The changes of tensors from one checkpoint to another, one by one or by modules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/verbs/comparing/comparison.h"

namespace fsdp::cli {

// The subject of a row of `diff`.
enum class ChangeUnit {
  kTensor,
  kModule,  // the tensors whose keys share all but the last part
  kLayer,   // tensors whose keys share the parts up to the first number; without a number, a module
};
// "tensor", "module", "layer".
const char* unit_word(ChangeUnit unit);

enum class ChangeOrder {
  kRelative,  // the largest change by the norm first
  kAbsolute,  // the largest |a - b| of an element first
  kName,
};

// The change of one tensor, or of all tensors of a module together.
struct Change {
  std::string name;
  std::size_t tensor = 0;  // the first tensor, as a position in Comparison::compared
  std::uint64_t tensors = 0;
  std::uint64_t changed = 0;  // tensors
  std::uint64_t elements = 0;
  std::uint64_t different = 0;  // elements
  bool numbers = false;         // the type of some has numbers
  formats::SquareSum left;      // as in TensorDifference
  formats::SquareSum apart;
  std::uint64_t unbounded = 0;
  double max_abs = 0;
  std::string most;  // of folded layers: the layer with the largest change

  // Returns nothing if no tensor holds numbers.
  std::optional<double> relative() const;
};

// Returns the changes of everything that was compared, in natural order, also of what did not
// change.
std::vector<Change> changes_of(const std::vector<ComparedTensor>& compared, ChangeUnit unit);

// Folds changes of numbered layers that are alike.  The largest change represents all of them, and
// counts add up.
// Requires: `changes` is of `compared`.
std::vector<Change> folded(const std::vector<Change>& changes,
                           const std::vector<ComparedTensor>& compared);

// Drops what did not change and sorts the rest.  Except for kName, changes with NaN or infinities
// on one side come first.
void rank(std::vector<Change>& changes, ChangeOrder order);

}  // namespace fsdp::cli
