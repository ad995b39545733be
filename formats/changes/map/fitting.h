// SPDX-License-Identifier: Apache-2.0
// Which built-in maps take a model, judged by its names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/map/builtin.h"
#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {

// Returns the maps whose rules take every name and need no other.  `model_type`: that of
// config.json, which a map has to be for; empty: unknown.
std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction);

// A map that takes most of the names, and why it does not fit.
struct NearMap {
  std::string_view name;
  std::string why;  // "no rule takes 'layers.0.attention.foo'"
};

// Returns the map that turns the most of the names into others, if those are at least half of them.
// Requires: none fits.
std::optional<NearMap> nearest_map(std::span<const std::string> names, Direction direction);

}  // namespace fsdp::formats::map
