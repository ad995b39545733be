// SPDX-License-Identifier: Apache-2.0
// Any bytes read as the rules of a map, in both directions; accepted rules are tried on names.
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/changes/map/matching.h"
#include "formats/changes/map/parameters.h"
#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {
namespace {

const std::vector<std::string> kNames = {"a",
                                         "b",
                                         "a.0.w",
                                         "a.1.w",
                                         "a.2.w",
                                         "layers.0.q.weight",
                                         "layers.0.k.weight",
                                         "norm.bias",
                                         std::string(300, '.')};

void read(std::string_view text, Direction direction) {
  try {
    Rules rules = parse_rules(text, "rules", direction);
    const GivenParameters given;
    const ParameterValues::Shapes shapes = {{"a", {3, 4}}, {"b", {}}};
    ParameterValues values(rules, given, shapes);
    for (const Parameter& parameter : rules.parameters) {
      try {
        values(parameter.name);
      } catch (const Error&) {
        break;
      }
    }
    rules.set_offsets(std::ref(values));
    for (const RuleUse& use : rule_uses(rules, kNames))
      target_names(rules, use, use.targets.size());
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats::map

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using fsdp::formats::map::Direction;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::formats::map::read(text, Direction::kForward);
  fsdp::formats::map::read(text, Direction::kReverse);
  return 0;
}
