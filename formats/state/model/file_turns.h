// SPDX-License-Identifier: Apache-2.0
// The order in which pieces of several files are copied.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Returns the numbers of all pieces in an order that advances up to `files_at_once` files equally,
// by bytes: each of them can have a thread that writes it (write_turns.h).  The pieces of one file
// keep their order, and files begin in the order of their first pieces.
// Requires: files_at_once >= 1.
std::vector<std::size_t> in_turns(std::span<const TargetPiece> pieces, std::size_t files_at_once);

}  // namespace fsdp::formats
