// SPDX-License-Identifier: Apache-2.0
#include "formats/map/fitting.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/map/matching.h"

namespace fsdp::formats::map {
namespace {

// A map for any model fits none in particular.
bool takes(const BuiltinMap& map, std::span<const std::string> names, std::string_view model_type,
           Direction direction) {
  try {
    const Rules rules = parse_rules(map.text, std::string(map.name), direction);
    const auto& types = rules.model_types;
    const bool for_it = model_type.empty()
                            ? !types.empty()
                            : std::find(types.begin(), types.end(), model_type) != types.end();
    if (for_it) rule_uses(rules, names);
    return for_it;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction) {
  std::vector<BuiltinMap> fitting;
  for (const BuiltinMap& map : builtin_maps()) {
    if (takes(map, names, model_type, direction)) fitting.push_back(map);
  }
  return fitting;
}

}  // namespace fsdp::formats::map
