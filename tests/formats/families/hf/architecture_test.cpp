// SPDX-License-Identifier: Apache-2.0
// What transformers' classes have is compared with transformers in
// tests/interop/check_architectures.py.
#include "formats/families/hf/architecture.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/families/hf/architecture_fit.h"

namespace fsdp::formats::hf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kLlama =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10)";

Json llama(const std::string& more = "") {
  return parse_json(std::string(kLlama) + more + "}");
}

// As LlamaForCausalLM(config).state_dict() has them.
NamedShapes llama_tensors() {
  NamedShapes out = {{"model.embed_tokens.weight", {10, 8}}, {"model.norm.weight", {8}}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      out.emplace_back(layer + std::string(name), std::move(shape));
    };
    add("self_attn.q_proj.weight", {8, 8});
    add("self_attn.k_proj.weight", {4, 8});
    add("self_attn.v_proj.weight", {4, 8});
    add("self_attn.o_proj.weight", {8, 8});
    add("mlp.gate_proj.weight", {12, 8});
    add("mlp.up_proj.weight", {12, 8});
    add("mlp.down_proj.weight", {8, 12});
    add("input_layernorm.weight", {8});
    add("post_attention_layernorm.weight", {8});
  }
  out.emplace_back("lm_head.weight", std::vector<std::int64_t>{10, 8});
  return out;
}

ModelDifferences compare(const Json& config, const NamedShapes& tensors) {
  std::string unknown;
  const auto found = Architecture::of(config, unknown);
  EXPECT_TRUE(found) << unknown;
  return found->differences(tensors);
}

NamedShapes without(NamedShapes tensors, const std::string& name) {
  std::erase_if(tensors, [&](const auto& tensor) { return tensor.first == name; });
  return tensors;
}

TEST(ArchitectureTest, a_complete_model_has_what_its_class_has) {
  const ModelDifferences found = compare(llama(), llama_tensors());
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(found.matching, 21U);
}

TEST(ArchitectureTest, each_tensor_that_is_lost_is_missed) {
  for (const auto& [name, shape] : llama_tensors()) {
    EXPECT_THAT(compare(llama(), without(llama_tensors(), name)).missing, ElementsAre(name));
  }
}

TEST(ArchitectureTest, a_head_may_be_left_out_where_it_is_tied) {
  const Json tied = llama(R"(, "tie_word_embeddings": true)");
  EXPECT_TRUE(compare(tied, llama_tensors()).empty());
  EXPECT_TRUE(compare(tied, without(llama_tensors(), "lm_head.weight")).empty());
  // Of two names of one tensor either is enough.
  EXPECT_TRUE(compare(tied, without(llama_tensors(), "model.embed_tokens.weight")).empty());
}

TEST(ArchitectureTest, shapes_are_those_of_the_configuration) {
  NamedShapes tensors = llama_tensors();
  tensors[0].second = {11, 8};
  EXPECT_THAT(compare(llama(), tensors).shapes,
              ElementsAre("'model.embed_tokens.weight' [11, 8], expected [10, 8]"));
  EXPECT_EQ(compare(llama(R"(, "head_dim": 4)"), llama_tensors()).shapes.size(), 8U);
}

TEST(ArchitectureTest, flags_bring_tensors_along) {
  EXPECT_EQ(compare(llama(R"(, "attention_bias": true)"), llama_tensors()).missing.size(), 8U);
  NamedShapes tensors = llama_tensors();
  tensors.emplace_back("model.layers.0.self_attn.q_proj.bias", std::vector<std::int64_t>{8});
  EXPECT_THAT(compare(llama(), tensors).unexpected,
              ElementsAre("model.layers.0.self_attn.q_proj.bias"));
}

TEST(ArchitectureTest, fronts_are_found_by_what_fits) {
  std::string unknown;
  const auto found = Architecture::of(llama(), unknown);
  NamedShapes wrapped;
  for (const auto& [name, shape] : llama_tensors())
    wrapped.emplace_back("base_model.model." + name, shape);
  const ArchitectureFit fit = fit_to(*found, wrapped);
  EXPECT_EQ(fit.strip, "base_model.model.");
  EXPECT_TRUE(fit.differences.empty());
  EXPECT_EQ(fit.renamed("base_model.model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(fit_to(*found, llama_tensors()).strip, "");
}

TEST(ArchitectureTest, modules_name_what_files_hold) {
  const char* const config =
      R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 8, "vocab_size": 10})";
  std::string unknown;
  const auto found = Architecture::of(parse_json(config), unknown);
  ASSERT_TRUE(found) << unknown;
  const ModuleNames names = found->module_names({{"embed_out.weight", {10, 8}}});
  EXPECT_TRUE(names.known);
  EXPECT_THAT(names.renamed, ElementsAre(std::pair<const std::string, std::string>(
                                 "embed_out.weight", "lm_head.weight")));
  // Modules that nobody knows get no names.
  EXPECT_FALSE(
      found->module_names({{"embed_out.weight", {10, 8}}, {"embed_in.weight", {11, 8}}}).known);
  EXPECT_THAT(found->module_names({{"lm_head.weight", {10, 8}}}).renamed, IsEmpty());
  EXPECT_THAT(Architecture::of(llama(), unknown)->module_names(llama_tensors()).renamed, IsEmpty());
}

TEST(ArchitectureTest, names_of_modules_are_not_known_where_only_those_of_files_are_open) {
  const char* const config =
      R"({"model_type": "prompt_depth_anything", "architectures": ["PromptDepthAnythingForDepthEstimation"],
          "backbone_config": {"model_type": "dinov2", "use_swiglu_ffn": true}})";
  std::string unknown;
  const auto found = Architecture::of(parse_json(config), unknown);
  ASSERT_TRUE(found) << unknown;
  const auto layer = [](const std::vector<std::string>& more) {
    const std::vector<std::string> every = {"attention.attention.query",
                                            "attention.attention.key",
                                            "attention.attention.value",
                                            "attention.output.dense",
                                            "norm1",
                                            "norm2"};
    NamedShapes out = {{"layer_scale1.lambda1", {8}}, {"layer_scale2.lambda1", {8}}};
    for (const auto* modules : {&every, &more}) {
      for (const std::string& module : *modules) {
        const bool norm = module.starts_with("norm");
        out.emplace_back(module + ".weight", std::vector<std::int64_t>(norm ? 1 : 2, 8));
        out.emplace_back(module + ".bias", std::vector<std::int64_t>{8});
      }
    }
    for (auto& [name, shape] : out) name = "backbone.encoder.layer.0." + name;
    return out;
  };
  const ModuleNames plain = found->module_names(layer({"mlp.fc1", "mlp.fc2"}));
  EXPECT_TRUE(plain.known);
  EXPECT_EQ(plain.renamed.size(), 8U);
  // transformers makes two parameters of weights_in.
  EXPECT_FALSE(found->module_names(layer({"mlp.weights_in", "mlp.weights_out"})).known);
}

TEST(ArchitectureTest, words_of_early_models_are_understood) {
  std::string unknown;
  const auto found = Architecture::of(
      parse_json(R"({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8})"),
      unknown);
  ASSERT_TRUE(found) << unknown;
  const ArchitectureFit fit =
      fit_to(*found, {{"embeddings.LayerNorm.gamma", {8}}, {"embeddings.LayerNorm.beta", {8}}});
  EXPECT_TRUE(fit.early);
  EXPECT_THAT(fit.differences.unexpected, IsEmpty());
  EXPECT_EQ(fit.renamed("embeddings.LayerNorm.beta"), "embeddings.LayerNorm.bias");
}

TEST(ArchitectureTest, what_nobody_has_data_of_is_said) {
  std::string unknown;
  EXPECT_FALSE(Architecture::of(parse_json(R"({"model_type": "own"})"), unknown));
  EXPECT_THAT(unknown, HasSubstr("model_type 'own' is not known"));
  EXPECT_FALSE(Architecture::of(parse_json("{}"), unknown));
  EXPECT_THAT(unknown, HasSubstr("no model_type"));
  EXPECT_FALSE(Architecture::of(
      parse_json(R"({"model_type": "llama", "architectures": ["LlamaForOwn"]})"), unknown));
  EXPECT_THAT(unknown, HasSubstr("class 'LlamaForOwn'"));
  EXPECT_FALSE(Architecture::of(parse_json(R"({"model_type": "llama\",\"x"})"), unknown));
  const auto assumed = Architecture::of(parse_json(R"({"model_type": "llama"})"), unknown);
  ASSERT_TRUE(assumed);
  EXPECT_TRUE(assumed->assumed());
  EXPECT_EQ(assumed->name(), "LlamaForCausalLM");
}

TEST(ArchitectureTest, a_configuration_of_endless_layers_is_refused) {
  std::string unknown;
  EXPECT_THROW(
      Architecture::of(parse_json(R"({"model_type": "llama", "num_hidden_layers": 900000000000})"),
                       unknown),
      Error);
  EXPECT_THROW(Architecture::of(
                   parse_json(R"({"model_type": "llama", "num_hidden_layers": 100001})"), unknown),
               Error);
}

}  // namespace
}  // namespace fsdp::formats::hf
