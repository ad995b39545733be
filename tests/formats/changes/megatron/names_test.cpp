// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/names.h"

#include <gtest/gtest.h>

namespace fsdp::formats::megatron {
namespace {

TEST(MegatronNames, keys_of_torch_dist) {
  EXPECT_EQ(dist_key("decoder.final_layernorm.weight").state, "");
  EXPECT_EQ(dist_key("optimizer.state.exp_avg.decoder.final_layernorm.weight").state, "exp_avg");
  EXPECT_EQ(dist_key("optimizer.state.exp_avg.decoder.w").name, "decoder.w");
  EXPECT_EQ(dist_key("chained_1.optimizer.state.param.decoder.w").state, "param");
  EXPECT_EQ(dist_key("chained_1.optimizer.state.param.decoder.w").name, "decoder.w");
  // Neither is a state.
  EXPECT_EQ(dist_key("optimizer.state.exp_avg").name, "optimizer.state.exp_avg");
  EXPECT_EQ(dist_key("chained_x.optimizer.state.a.b").state, "");
  EXPECT_TRUE(is_bucket("optimizer.distributed.dp_group_idx_0.gbuf_idx_0"));
  EXPECT_TRUE(is_bucket("chained_0.optimizer.distributed.dp_group_idx_0.x"));
  EXPECT_FALSE(is_bucket("optimizer.state.exp_avg.w"));
  EXPECT_TRUE(is_sharded_object("rng_state/shard_0_4"));
  EXPECT_FALSE(is_sharded_object("iteration"));
}

TEST(MegatronNames, layers) {
  const auto joined = layer_of("decoder.layers.mlp.linear_fc2.weight");
  ASSERT_TRUE(joined);
  EXPECT_FALSE(joined->number);
  EXPECT_EQ(joined->before, "decoder.layers.");
  EXPECT_EQ(joined->after, "mlp.linear_fc2.weight");
  auto one = layer_of("module.encoder.layers.12.mlp.linear_fc2.weight");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->number, 12);
  EXPECT_EQ(layer_name(*one), "module.encoder.layers.12.mlp.linear_fc2.weight");
  one->number.reset();
  EXPECT_EQ(layer_name(*one), "module.encoder.layers.mlp.linear_fc2.weight");
  EXPECT_FALSE(layer_of("mtp.layers.0.eh_proj.weight"));
  EXPECT_FALSE(layer_of("embedding.word_embeddings.weight"));
  // Too large for a number, and with a leading zero: parts of names.
  EXPECT_FALSE(layer_of("decoder.layers.99999999999999999999.a")->number);
  EXPECT_FALSE(layer_of("decoder.layers.01.a")->number);
}

TEST(MegatronNames, experts_have_one_form) {
  for (const char* name : {"d.layers.0.mlp.experts.linear_fc1.weight7",
                           "d.layers.0.mlp.experts.experts.7.linear_fc1.weight",
                           "d.layers.0.mlp.experts.local_experts.7.linear_fc1.weight"}) {
    const auto expert = expert_of(name);
    ASSERT_TRUE(expert) << name;
    EXPECT_EQ(expert->number, 7) << name;
    EXPECT_EQ(expert_name(*expert), "d.layers.0.mlp.experts.linear_fc1.weight7");
  }
  const auto half = expert_of("d.mlp.experts.linear_fc1.weight12_w");
  ASSERT_TRUE(half);
  EXPECT_EQ(half->number, 12);
  EXPECT_EQ(half->after, "linear_fc1.weight_w");
  EXPECT_EQ(expert_name(*half), "d.mlp.experts.linear_fc1.weight12_w");
  const auto joined = expert_of("d.mlp.experts.experts.linear_fc2.weight");
  ASSERT_TRUE(joined);
  EXPECT_FALSE(joined->number);
  EXPECT_EQ(expert_name(*joined), "d.mlp.experts.experts.linear_fc2.weight");
  EXPECT_FALSE(expert_of("d.mlp.experts.linear_fc1.weight"));
  EXPECT_FALSE(expert_of("d.mlp.shared_experts.linear_fc1.weight"));
}

TEST(MegatronNames, norms_of_layers_without_transformer_engine) {
  EXPECT_EQ(engine_name("decoder.layers.3.input_layernorm.weight", false),
            "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight");
  EXPECT_EQ(engine_name("decoder.layers.3.pre_mlp_layernorm.weight", false),
            "decoder.layers.3.mlp.linear_fc1.layer_norm_weight");
  EXPECT_EQ(engine_name("decoder.layers.3.pre_mlp_layernorm.weight", true),
            "decoder.layers.3.pre_mlp_layernorm.weight");
  EXPECT_EQ(norm_name("decoder.layers.3.mlp.linear_fc1.layer_norm_weight"),
            "decoder.layers.3.pre_mlp_layernorm.weight");
  EXPECT_EQ(norm_name("decoder.final_layernorm.weight"), "decoder.final_layernorm.weight");
}

TEST(MegatronNames, perceptrons) {
  EXPECT_TRUE(is_first_linear("decoder.layers.0.mlp.linear_fc1.weight"));
  EXPECT_TRUE(is_first_linear("decoder.layers.0.mlp.experts.linear_fc1.bias11"));
  EXPECT_TRUE(is_first_linear("decoder.layers.0.mlp.shared_experts.linear_fc1.weight"));
  EXPECT_FALSE(is_first_linear("decoder.layers.0.mlp.linear_fc1.layer_norm_weight"));
  EXPECT_FALSE(is_first_linear("decoder.layers.0.mlp.linear_fc2.weight"));
  EXPECT_EQ(second_linear("a.mlp.experts.linear_fc1.bias3"), "a.mlp.experts.linear_fc2.weight3");
}

}  // namespace
}  // namespace fsdp::formats::megatron
