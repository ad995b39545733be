// SPDX-License-Identifier: Apache-2.0
// The loop of reference.py.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/parity/subject.h"

namespace fsdp::test {

// Returns whether a public program has its own loop; others share one.
bool has_own_loop(const std::string& model);

// Collective.
Training train_sharded(const ParityCase& wanted, const ParityInputs& inputs,
                       const std::shared_ptr<ProcessGroup>& group);

// Trains every rank, without libfsdp.  Requires: no own loop.
std::vector<Training> train_plain(const ParityCase& wanted, const ParityInputs& inputs, int world);

}  // namespace fsdp::test
