// SPDX-License-Identifier: Apache-2.0
// The sharding options of a case.
#pragma once

#include <memory>

#include "libfsdp/options.h"
#include "libfsdp/process_group.h"
#include "tests/parity/reference.h"

namespace fsdp::test {

// Returns the options of a case that do not depend on its module.  Collective if a hybrid strategy
// splits the ranks.
FsdpOptions case_options(const ParityCase& wanted, const std::shared_ptr<ProcessGroup>& group);

}  // namespace fsdp::test
