// SPDX-License-Identifier: Apache-2.0
// What reference.py does, in C++: a case trained by libfsdp, and by modules that are not sharded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libfsdp/process_group.h"
#include "tests/parity/reference.h"

namespace fsdp::test {

struct ParityInputs {
  std::string model;
  std::int64_t steps;
  const Tensors& tensors;
};

// Collective.
Training train_sharded(const ParityCase& wanted, const ParityInputs& inputs,
                       const std::shared_ptr<ProcessGroup>& group);

// Every rank a module of its own, one after the other; gradients are averaged by hand.  Knows
// nothing of strategies and mixed precision.
std::vector<Training> train_plain(const ParityCase& wanted, const ParityInputs& inputs, int world);

}  // namespace fsdp::test
