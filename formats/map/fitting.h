// SPDX-License-Identifier: Apache-2.0
// Which built-in maps take a model, judged by its names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/map/builtin.h"
#include "formats/map/rules.h"

namespace fsdp::formats::map {

// Returns the maps whose rules take every name and need no other.  `model_type`: that of
// config.json, which a map has to be for; empty: unknown.
std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction);

}  // namespace fsdp::formats::map
