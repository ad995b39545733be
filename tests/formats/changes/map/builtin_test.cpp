// SPDX-License-Identifier: Apache-2.0
// tests/interop/check_maps.py compares what they make with the code that the models come from.
#include "formats/changes/map/builtin.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {
namespace {

TEST(BuiltinMaps, are_sorted_described_and_lead_both_ways) {
  std::string last;
  for (const BuiltinMap& map : builtin_maps()) {
    EXPECT_LT(last, map.name);
    last = map.name;
    const Rules rules = parse_rules(map.text, last, Direction::kForward);
    EXPECT_FALSE(rules.description.empty()) << last;
    // nanoGPT has no versions.
    EXPECT_EQ(rules.versions.empty(), last == "fp8-to-bf16" || last == "nanogpt-gpt2") << last;
    // Those that change the dtype alone are for any model, diffusers' config.json has no
    // model_type, and MXFP4 is only read.
    // Its names in Megatron-Core are those of Llama.
    const bool by_name_alone = last == "megatron-nemotron-labs-diffusion-hf";
    EXPECT_EQ(rules.model_types.empty(),
              last.ends_with("-to-bf16") || last.ends_with("-diffusers") || by_name_alone)
        << last;
    if (last == "mxfp4-to-bf16") {
      EXPECT_THROW(parse_rules(map.text, last, Direction::kReverse), Error);
    } else {
      EXPECT_NO_THROW(parse_rules(map.text, last, Direction::kReverse)) << last;
    }
    // A parameter that neither an operation nor a name asks for, itself or for a value, would be
    // one that a user gives in vain.
    std::set<std::string> used;
    std::vector<Rule> all = rules.rules;
    all.insert(all.end(), rules.fused.begin(), rules.fused.end());
    for (const Rule& rule : all) {
      for (const Operation& operation : rule.operations)
        for (const std::string& name : parameters_of(operation)) used.insert(name);
      for (const Pattern& pattern : rule.to)
        for (const auto& [name, capture] : pattern.offsets()) used.insert(name);
    }
    // Values are of parameters above.
    for (auto at = rules.parameters.rbegin(); at != rules.parameters.rend(); ++at) {
      if (at->value && used.contains(at->name))
        used.insert(at->value->names().begin(), at->value->names().end());
    }
    for (const Parameter& parameter : rules.parameters)
      EXPECT_TRUE(used.contains(parameter.name)) << last << ": " << parameter.name;
  }
  EXPECT_FALSE(last.empty());
}

}  // namespace
}  // namespace fsdp::formats::map
