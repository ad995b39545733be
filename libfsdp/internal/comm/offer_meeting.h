// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group come to read each other's memory.
#pragma once

#include <memory>

#include "libfsdp/internal/comm/offer_board.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Collective over the group, whose backend works.  Returns null on every rank if one of them cannot
// read the memory of another: on another host, behind another namespace of process numbers, or
// where the kernel forbids it; or if one of them does not want it.
std::shared_ptr<OfferBoard> meet_at_board(const std::shared_ptr<ProcessGroup>& group, bool wanted);

}  // namespace fsdp::internal
