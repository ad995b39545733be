// SPDX-License-Identifier: Apache-2.0
// The loop of reference.py.
#pragma once

#include <memory>
#include <vector>

#include "tests/parity/subject.h"

namespace fsdp::test {

// Collective.
Training train_sharded(const ParityCase& wanted, const ParityInputs& inputs,
                       const std::shared_ptr<ProcessGroup>& group);

// Every rank's, without libfsdp.
std::vector<Training> train_plain(const ParityCase& wanted, const ParityInputs& inputs, int world);

}  // namespace fsdp::test
