// SPDX-License-Identifier: Apache-2.0
// Moves a leaf of a state dict to another key.
#pragma once

#include <cstddef>
#include <string_view>

#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats {

// Puts `to` in the place of the first `bytes` of the leaf's key, which are whole components of it.
// Levels that both keys begin with stay.  The rest of `to` becomes as many steps as the replaced
// part had; further components stand in front as steps of their own, in plain dicts.
// Throws: kName if nothing would be left of the key.
void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to);

}  // namespace fsdp::formats
