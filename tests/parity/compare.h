// SPDX-License-Identifier: Apache-2.0
// Measures how far a training is from PyTorch's.
#pragma once

#include <string>

#include "tests/parity/reference.h"

namespace fsdp::test {

// Largest differences allowed.
struct Tolerance {
  double first;    // relative, of the loss before the first step
  double losses;   // relative; evaluations too
  double norms;    // relative
  double weights;  // |difference| <= weights * (1 + |value|); buffers too
};

// Returns the tolerance of a case: see the table in docs/parity.md.
Tolerance tolerance_of(const ParityCase& wanted, const Floor& floor);

struct Difference {
  double first = 0;
  double losses = 0;  // as in Tolerance, the largest of all steps
  double norms = 0;
  double weights = 0;
  std::string worst;  // the tensor of `weights`
};

// Throws: c10::Error if the two have other steps, names or shapes.
Difference difference(const ParityCase& wanted, const Training& ours, const Training& theirs);

}  // namespace fsdp::test
