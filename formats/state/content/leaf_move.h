// SPDX-License-Identifier: Apache-2.0
// Moves a leaf of a state dict to another key.
#pragma once

#include <cstddef>
#include <string_view>

#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats {

// Replaces the first `bytes` of the leaf's key, which must be whole components, by `to`.  Leading
// levels that both keys share stay.  The rest of `to` becomes as many steps as the replaced part
// had; further components become steps of their own before these, in plain dicts.
// Throws: kName if nothing would be left of the key.
void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to);

}  // namespace fsdp::formats
