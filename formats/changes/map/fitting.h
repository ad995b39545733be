// SPDX-License-Identifier: Apache-2.0
// Finds the built-in maps that take a model, by its names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/map/builtin.h"
#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {

// Returns the maps whose rules take every name, need no other, and change something.  `model_type`:
// of config.json, which the map must list; empty: unknown, and maps that all need a configuration
// do not fit: other models have these names, too.  None fits names of which one has more than 2,000
// bytes.
std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction);

// Returns the maps that take the names, and may fit where a configuration names their model.
std::vector<BuiltinMap> maps_by_config(std::span<const std::string> names, Direction direction);

// A map that takes most of the names, and why it does not fit.
struct NearMap {
  std::string_view name;
  std::string why;  // "no rule takes 'layers.0.attention.foo'"
};

// Returns the map that renames the most names, if it renames at least half of them and at least
// half of the rules that must match take one, of those that need no configuration.
// Requires: no map fits.
std::optional<NearMap> nearest_map(std::span<const std::string> names, Direction direction);

}  // namespace fsdp::formats::map
