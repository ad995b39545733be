// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a group read each other's memory.
#pragma once

#include <memory>

#include "libfsdp/internal/comm/offer_board.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Collective over the group, whose backend must work.  Returns null on every rank if a rank cannot
// read the memory of another (on another host, in another PID namespace, or where the kernel
// forbids it), or does not want to.
std::shared_ptr<OfferBoard> meet_at_board(const std::shared_ptr<ProcessGroup>& group, bool wanted);

}  // namespace fsdp::internal
