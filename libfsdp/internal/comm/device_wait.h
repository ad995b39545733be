// SPDX-License-Identifier: Apache-2.0
// Waits of the host for a device.  Its streams may hold a collective that another rank never joins,
// so a wait also checks the other ranks, like Pending::wait().
#pragma once

#include <string>

#include <c10/core/Event.h>

#include "libfsdp/internal/comm/call_site.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Returns once the device has reached the event.  `what` says what the host is about to do:
// "all-gather of blocks.1".
// Throws: PeerError "<what>: <why>; <the monitor's diagnosis>" if a rank failed, or if the wait
// takes longer than the group's timeout.
void wait_for_event(ProcessGroup& group, const c10::Event& event, const std::string& what,
                    CallSite site = CallSite::current());

}  // namespace fsdp::internal
