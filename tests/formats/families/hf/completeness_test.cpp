// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/completeness.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats::hf {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Names = std::vector<std::string>;

Names model(int layers, int experts = 0) {
  Names names = {"model.embed_tokens.weight", "model.norm.weight"};
  for (int i = 0; i < layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    names.push_back(at + "attn.weight");
    names.push_back(at + "norm.weight");
    for (int e = 0; e < experts; ++e)
      names.push_back(at + "mlp.experts." + std::to_string(e) + ".up.weight");
  }
  return names;
}

Names without(Names names, const std::string& name) {
  std::erase(names, name);
  return names;
}

Names missing(const Names& names, const char* config = "{}") {
  const Json json = parse_json(config);
  return missing_names(names, &json);
}

TEST(MissingNames, a_whole_model_lacks_nothing) {
  EXPECT_THAT(missing(model(12, 11)), IsEmpty());
  EXPECT_THAT(missing(model(12), R"({"num_hidden_layers": 12})"), IsEmpty());
  EXPECT_THAT(missing_names(model(3), nullptr), IsEmpty());
  EXPECT_THAT(missing({}), IsEmpty());
}

TEST(MissingNames, layers_have_what_other_layers_have) {
  EXPECT_THAT(missing(without(model(3), "model.layers.1.norm.weight")),
              ElementsAre("model.layers.1.norm.weight"));
  // Two kinds of layers, of which neither has all names of the other.
  Names kinds = model(2);
  kinds.push_back("model.layers.0.dense.weight");
  kinds.push_back("model.layers.1.sparse.weight");
  EXPECT_THAT(missing(kinds), IsEmpty());
}

TEST(MissingNames, layers_and_experts_are_counted_without_a_gap) {
  Names names =
      without(without(model(3), "model.layers.1.norm.weight"), "model.layers.1.attn.weight");
  EXPECT_THAT(missing(names),
              ElementsAre("model.layers.1.attn.weight", "model.layers.1.norm.weight"));
  EXPECT_THAT(missing(model(2), R"({"num_hidden_layers": 3})"),
              ElementsAre("model.layers.2.attn.weight", "model.layers.2.norm.weight"));
  EXPECT_THAT(missing(without(model(1, 3), "model.layers.0.mlp.experts.1.up.weight")),
              ElementsAre("model.layers.0.mlp.experts.1.up.weight"));
  EXPECT_THAT(missing(model(1, 3), R"({"num_local_experts": 4})"),
              ElementsAre("model.layers.0.mlp.experts.3.up.weight"));
  // Hostile counts ask for nothing, or for a list that ends.
  EXPECT_LT(missing(model(50, 2), R"({"num_experts": 65536, "num_hidden_layers": 65536})").size(),
            1100U);
  EXPECT_LT(missing({"a.65535.b.w", "b.65535.b.w", "c.65535.b.w"}).size(), 1100U);
  EXPECT_THAT(missing(model(1), R"({"num_hidden_layers": 4000000000})"), IsEmpty());
}

TEST(MissingNames, a_sequence_of_single_modules_may_have_others_without_names) {
  EXPECT_THAT(missing({"visual.mlp.0.weight", "visual.mlp.0.bias", "visual.mlp.2.weight"}),
              IsEmpty());
  EXPECT_THAT(missing({"visual.blocks.0.norm.weight", "visual.blocks.2.norm.weight"}),
              ElementsAre("visual.blocks.1.norm.weight"));
  EXPECT_THAT(missing({"model.layers.1.weight"}, R"({"num_hidden_layers": 3})"),
              ElementsAre("model.layers.0.weight", "model.layers.2.weight"));
}

TEST(MissingNames, a_head_that_is_not_tied_is_there) {
  EXPECT_THAT(missing(model(1), R"({"tie_word_embeddings": false})"),
              ElementsAre("lm_head.weight"));
  EXPECT_THAT(missing(model(1), R"({"tie_word_embeddings": true})"), IsEmpty());
}

TEST(EmbeddingContradiction, shapes_are_those_of_the_config) {
  const Json config = parse_json(R"({"vocab_size": 37, "hidden_size": 8})");
  const auto found = [&](std::vector<std::int64_t> shape) {
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes = {
        {"other", {1, 1}}, {"model.embed_tokens.weight", std::move(shape)}};
    return embedding_contradiction(shapes, config);
  };
  EXPECT_EQ(found({37, 8}), "");
  EXPECT_THAT(found({40, 8}), testing::HasSubstr("40 rows, and vocab_size is 37"));
  EXPECT_THAT(found({37, 9}), testing::HasSubstr("9 columns, and the hidden size is 8"));
  EXPECT_EQ(found({40}), "");
}

}  // namespace
}  // namespace fsdp::formats::hf
