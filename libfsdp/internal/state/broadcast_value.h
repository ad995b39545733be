// SPDX-License-Identifier: Apache-2.0
// Sends one rank's state value to all ranks.
#pragma once

#include <memory>
#include <string>

#include "libfsdp/process_group.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Collective.  Sends the value's skeleton (state_skeleton.h) and then tensor after tensor; they
// arrive on the CPU.  The values that other ranks give are not looked at.
// Throws: c10::Error as skeleton_text does, on every rank.
StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what);

}  // namespace fsdp::internal
