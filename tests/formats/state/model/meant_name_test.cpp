// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/meant_name.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

const std::vector<std::string> kNames = {"model.embed_tokens.weight", "model.layers.0.up.weight",
                                         "lm_head.weight", "step"};

TEST(MeantName, a_key_is_found_with_and_without_a_prefix) {
  EXPECT_EQ(meant_key("model.lm_head.weight", kNames), "lm_head.weight");
  EXPECT_EQ(meant_key("layers.0.up.weight", kNames), "model.layers.0.up.weight");
  EXPECT_EQ(meant_key("lm_haed.weight", kNames), "lm_head.weight");
  EXPECT_EQ(meant_key("head.weight", kNames), "lm_head.weight") << "by edit distance";
  EXPECT_EQ(meant_key("optimizer.state", kNames), "");
  EXPECT_EQ(meant_key("", kNames), "");
  EXPECT_EQ(meant_key("x", {}), "");
}

TEST(MeantName, a_glob_is_found_across_dots_and_with_and_without_a_prefix) {
  const auto meant = [](const char* glob) { return meant_glob(Glob(glob), kNames); };
  EXPECT_EQ(meant("model.*"), "; * does not cross dots; did you mean 'model.**'?");
  EXPECT_EQ(meant("model.*.up.*"), "; * does not cross dots; did you mean 'model.**.up.**'?");
  EXPECT_EQ(meant("layers.*.up.*"), "; did you mean 'model.layers.*.up.*'?");
  EXPECT_EQ(meant("layers.*"), "; did you mean 'model.layers.**'?");
  EXPECT_EQ(meant("layers.**"), "; did you mean 'model.layers.**'?");
  EXPECT_EQ(meant("model.lm_head.*"), "; did you mean 'lm_head.*'?");
  EXPECT_EQ(meant("a.b.lm_head.**"), "; did you mean 'lm_head.**'?");
  EXPECT_EQ(meant("model.lm_head.weight"), "; did you mean 'lm_head.weight'?");
  EXPECT_EQ(meant("steps"), "; did you mean 'step'?");
  EXPECT_EQ(meant("model"), "; did you mean 'model.**'?");
  EXPECT_EQ(meant("layers.0"), "; did you mean 'model.layers.0.**'?");
  EXPECT_EQ(meant("model/layers"), "; did you mean 'model.layers.**'?");
  EXPECT_EQ(meant("^model.*up.*$"), "; did you mean 'model**up**'?");
  EXPECT_EQ(meant("'model.**'"), "; did you mean 'model.**'?");
  EXPECT_EQ(meant("modle.layers.**"), "; did you mean 'model.layers.**'?");
  EXPECT_EQ(meant("**.weihgt"), "; did you mean '**.weight'?");
  EXPECT_EQ(meant("/"), "");
  // Everything is never meant.
  EXPECT_EQ(meant("optimizer.**"), "");
  EXPECT_EQ(meant("optimizer.state.*"), "");
  EXPECT_EQ(meant("[*].optimizer"), "");
}

}  // namespace
}  // namespace fsdp::formats
