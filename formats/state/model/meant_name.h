// SPDX-License-Identifier: Apache-2.0
// Suggests a name for one that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/state/model/select.h"

namespace fsdp::formats {

// The most names that suggestions are chosen from.
inline constexpr std::size_t kMostNamesCompared = 20'000;

// Returns the first name that is `key` with or without leading parts ("model.lm_head.weight" for
// "lm_head.weight", and the reverse), else the nearest by edit distance, else nothing.
std::string meant_key(std::string_view key, std::span<const std::string> names);

// Returns "; did you mean 'x'?" for a glob that matches none of the names; empty if nothing is
// near. Tried in turn: `**` for each `*`, leading parts of a name in front, leading parts of the
// glob left out, the glob of a regular expression or a path with slashes, what lies below a module,
// other spellings of single parts, the name nearest by edit distance.
std::string meant_glob(const Glob& glob, std::span<const std::string> names);

}  // namespace fsdp::formats
