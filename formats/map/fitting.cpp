// SPDX-License-Identifier: Apache-2.0
#include "formats/map/fitting.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/map/matching.h"

namespace fsdp::formats::map {
namespace {

bool takes(const Rules& rules, std::span<const std::string> names) {
  try {
    rule_uses(rules, names);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction) {
  std::vector<BuiltinMap> fitting;
  for (const BuiltinMap& map : builtin_maps()) {
    const Rules rules = parse_rules(map.text, std::string(map.name), direction);
    const auto& types = rules.model_types;
    if (!model_type.empty() && std::find(types.begin(), types.end(), model_type) == types.end())
      continue;
    if (takes(rules, names)) fitting.push_back(map);
  }
  return fitting;
}

}  // namespace fsdp::formats::map
