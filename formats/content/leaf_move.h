// SPDX-License-Identifier: Apache-2.0
// A leaf of a state dict put where another key says.
#pragma once

#include <cstddef>
#include <string_view>

#include "formats/content/placed_leaves.h"

namespace fsdp::formats {

// Puts `to` in the place of the first `bytes` of the leaf's key, which are whole components of it.
// Levels that both keys begin with stay.  Of the rest `to` becomes as many steps as what it
// replaces took up; what it has more of stands in front as steps of its own, in plain dicts.
// Throws: kName where nothing would be left of the key.
void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to);

}  // namespace fsdp::formats
