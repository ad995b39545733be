// SPDX-License-Identifier: Apache-2.0
// Sends one rank's state value to all ranks.
#pragma once

#include <memory>
#include <string>

#include "libfsdp/process_group.h"
#include "libfsdp/state_value.h"

namespace fsdp {

// Collective.  The value travels as the bytes of a torch.save file, which is read as inert data;
// its tensors arrive on the CPU.  `value` is ignored on the other ranks.
// Throws: c10::Error for sharded tensors, on every rank.
StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what);

}  // namespace fsdp
