// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/fitting.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats::map {
namespace {

// torchtitan's Llama 3; `wq` is what the version calls queries, without their letter.
std::vector<std::string> titan(const std::string& wq, const std::string& head) {
  std::vector<std::string> names = {"tok_embeddings.weight", "norm.weight", head};
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* part : {"q", "k", "v"}) names.push_back(layer + wq + part + ".weight");
    for (const char* name : {"attention.wo", "attention_norm", "ffn_norm", "feed_forward.w1",
                             "feed_forward.w2", "feed_forward.w3"})
      names.push_back(layer + std::string(name) + ".weight");
  }
  return names;
}

std::vector<std::string> fitting(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const BuiltinMap& map : fitting_maps(names, {}, Direction::kForward))
    found.emplace_back(map.name);
  return found;
}

TEST(Fitting, each_version_of_torchtitan_has_its_map) {
  EXPECT_EQ(fitting(titan("attention.qkv_linear.w", "lm_head.weight")),
            std::vector<std::string>{"torchtitan-llama3-hf"});
  EXPECT_EQ(fitting(titan("attention.w", "output.weight")),
            std::vector<std::string>{"torchtitan-0.2-llama3-hf"});
}

TEST(Fitting, a_map_that_would_change_nothing_does_not_fit) {
  // A layer without experts of a model that may have them.
  std::vector<std::string> names = {"model.embed_tokens.weight", "model.norm.weight",
                                    "lm_head.weight", "model.layers.0.mlp.up_proj.weight"};
  EXPECT_TRUE(fitting(names).empty());
  for (const BuiltinMap& map : fitting_maps(names, "qwen2_moe", Direction::kForward))
    ADD_FAILURE() << map.name;
  names.emplace_back("model.layers.1.mlp.experts.gate_up_proj");
  names.emplace_back("model.layers.1.mlp.experts.down_proj");
  const auto fit = fitting_maps(names, "qwen2_moe", Direction::kForward);
  ASSERT_EQ(fit.size(), 1U);
  EXPECT_EQ(fit[0].name, "transformers-moe-files");
}

TEST(Fitting, names_that_several_models_have_need_a_configuration) {
  // Files of Bailing's hybrids name some of these tensors otherwise, those of Llama do not.
  std::vector<std::string> names = {"model.embed_tokens.weight", "model.norm.weight",
                                    "lm_head.weight"};
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                           "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
                           "input_layernorm", "post_attention_layernorm"})
    names.push_back("model.layers.0." + std::string(name) + ".weight");
  EXPECT_TRUE(fitting(names).empty());
  EXPECT_TRUE(fitting_maps(names, "llama", Direction::kForward).empty());
  const auto fit = fitting_maps(names, "bailing_hybrid", Direction::kForward);
  ASSERT_EQ(fit.size(), 1U);
  EXPECT_EQ(fit[0].name, "transformers-bailing-hybrid-files");
  std::vector<std::string> by_config;
  for (const BuiltinMap& map : maps_by_config(names, Direction::kForward))
    by_config.emplace_back(map.name);
  EXPECT_NE(std::ranges::find(by_config, "transformers-bailing-hybrid-files"), by_config.end());
}

TEST(Fitting, the_nearest_map_is_named_with_the_first_key_that_does_not_fit) {
  std::vector<std::string> names = titan("attention.w", "output.weight");
  names.emplace_back("layers.0.attention.gate.weight");
  EXPECT_TRUE(fitting(names).empty());
  const auto near = nearest_map(names, Direction::kForward);
  ASSERT_TRUE(near.has_value());
  EXPECT_EQ(near->name, "torchtitan-0.2-llama3-hf");
  EXPECT_EQ(near->why.find("no rule takes 'layers.0.attention.gate.weight'"), 0U) << near->why;
}

TEST(Fitting, names_of_transformers_are_near_no_map) {
  const std::vector<std::string> names = {
      "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
      "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"};
  EXPECT_FALSE(nearest_map(names, Direction::kForward).has_value());
  EXPECT_FALSE(nearest_map(std::vector<std::string>{"a.weight", "b.weight"}, Direction::kForward));
}

}  // namespace
}  // namespace fsdp::formats::map
