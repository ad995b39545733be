// SPDX-License-Identifier: Apache-2.0
// How a case shards.
#pragma once

#include <memory>

#include "libfsdp/options.h"
#include "libfsdp/process_group.h"
#include "tests/parity/reference.h"

namespace fsdp::test {

// What a case says whatever its module is.  Collective where a hybrid strategy splits the ranks.
FsdpOptions case_options(const ParityCase& wanted, const std::shared_ptr<ProcessGroup>& group);

}  // namespace fsdp::test
