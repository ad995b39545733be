// SPDX-License-Identifier: Apache-2.0
// Names of peft and of what wraps it; tests/interop/lora_search.py has those of real adapters.
#include "formats/changes/lora/adapter_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {
namespace {

using testing::HasSubstr;

struct Made {
  Index index;
  std::vector<AdapterTensor> names;
};

Made adapter(const std::vector<std::string>& keys, DType dtype = DType::kFloat32) {
  Made made;
  for (const std::string& key : keys) {
    made.names.push_back({key, made.index.tensors.size()});
    made.index.add(TensorEntry{key, {key}, dtype, {2, 2}, ChunkList(2)});
  }
  return made;
}

AdapterParts parts(const std::vector<std::string>& keys) {
  const Made made = adapter(keys);
  return adapter_parts("a", made.index, made.names);
}

TEST(AdapterParts, wrappers_and_the_name_of_the_adapter_do_not_count) {
  const AdapterParts found = parts(
      {"module.base_model.model._orig_mod.l.0._checkpoint_wrapped_module.q.lora_A.default.weight",
       "base_model.model.l.0.q.lora_B.weight", "base_model.model.emb.base_layer.weight",
       "base_model.model.emb.lora_embedding_A.default", "emb.lora_embedding_B",
       "base_model.model.l.0.q.lora_magnitude_vector.default.weight", "l.0.q.lora_B.default.bias",
       "score.modules_to_save.default.weight", "score.original_module.weight",
       "wte.token_adapter.trainable_tokens_delta.default"});
  ASSERT_EQ(found.pairs.size(), 2U);
  EXPECT_EQ(found.pairs[0].module, "emb");
  EXPECT_TRUE(found.pairs[0].embedding);
  EXPECT_EQ(found.pairs[1].module, "l.0.q");
  EXPECT_EQ(found.pairs[1].a, 0U);
  EXPECT_EQ(found.pairs[1].b, 1U);
  EXPECT_EQ(found.pairs[1].magnitude, 5U);
  EXPECT_EQ(found.pairs[1].bias, 6U);
  ASSERT_EQ(found.whole.size(), 2U);
  EXPECT_TRUE(found.whole.at("emb.weight").of_base);
  EXPECT_TRUE(found.whole.at("score.weight").saved);
  EXPECT_EQ(found.tokens.at("wte"), 9U);
  std::vector<std::string> written;
  for (const AdapterTensor& tensor : peft_tensors(found)) written.push_back(tensor.key);
  EXPECT_THAT(written, testing::Contains("base_model.model.l.0.q.lora_A.weight"));
  EXPECT_THAT(written, testing::Contains("base_model.model.emb.lora_embedding_A"));
  EXPECT_THAT(written, testing::Contains("base_model.model.l.0.q.lora_magnitude_vector"));
}

TEST(AdapterParts, parameters_of_one_module_are_told_apart_by_their_depth) {
  const AdapterParts found = parts({"e.lora_A.weight", "e.lora_B.weight",
                                    "e.base_layer.lora_A.weight", "e.base_layer.lora_B.weight"});
  ASSERT_EQ(found.pairs.size(), 2U);
  EXPECT_EQ(found.pairs[0].module, found.pairs[1].module);
  EXPECT_NE(found.pairs[0].depth, found.pairs[1].depth);
}

TEST(AdapterParts, keys_of_optimizers_are_not_the_adapters) {
  EXPECT_TRUE(is_adapter_key("model.base_model.model.q.lora_A.default.weight"));
  EXPECT_TRUE(is_adapter_key("q.lora_embedding_B.default"));
  EXPECT_FALSE(is_adapter_key("optim.state.q.lora_A.default.weight.exp_avg"));
  EXPECT_FALSE(is_adapter_key("q.base_layer.weight"));
  EXPECT_FALSE(is_adapter_key("score.original_module.weight"));
}

TEST(AdapterParts, what_is_not_known_is_refused_by_name) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"q.lora_A.weight"}, "has matrix A without B"},
      {{"q.lora_A.x.weight", "q.lora_B.y.weight"}, "two adapters, 'x' and 'y'"},
      {{"q.lora_C.weight"}, "a kind of LoRA"},
      {{"q.lora_A.x.y.weight"}, "a kind of LoRA"},
      {{"q.lora_A"}, "a kind of LoRA"},
      {{"q.lora_A.weight", "module.q.lora_A.weight"}, "occurs twice"},
      {{}, "holds no tensor"}};
  for (const auto& [keys, says] : cases) {
    try {
      parts(keys);
      ADD_FAILURE() << says;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
  const Made integers = adapter({"q.lora_A.weight"}, DType::kInt8);
  EXPECT_THROW(adapter_parts("a", integers.index, integers.names), Error);
}

}  // namespace
}  // namespace fsdp::formats
