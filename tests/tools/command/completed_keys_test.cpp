// SPDX-License-Identifier: Apache-2.0
#include "tools/command/completed_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CompletedKeys, go_on_to_the_next_dot) {
  const std::vector<std::string> keys = {"layers.10.w", "layers.2.w", "layers.2.b", "step", "list"};
  EXPECT_THAT(continued_keys(keys, ""), ElementsAre("layers.", "list", "step"));
  EXPECT_THAT(continued_keys(keys, "l"), ElementsAre("layers.", "list"));
  EXPECT_THAT(continued_keys(keys, "layers."), ElementsAre("layers.2.", "layers.10."));
  EXPECT_THAT(continued_keys(keys, "layers.2.w"), ElementsAre("layers.2.w"));
  EXPECT_THAT(continued_keys(keys, "x"), IsEmpty());
}

TEST(CompletedKeys, leave_out_what_means_something_to_a_shell) {
  EXPECT_THAT(
      continued_keys({"a b", "$(touch x)", "`x`", "a\nb", "a'b", "a;b", "a*", "e\xc3\xa4"}, ""),
      IsEmpty());
}

TEST_F(CliTest, keys_of_a_checkpoint_are_printed_for_shells) {
  const std::string good = golden_path("2.15.0/fsdp2/ckpt");
  EXPECT_EQ(run_cli({"--print-keys", good, "app.model.blocks.0.up."}).out,
            "app.model.blocks.0.up.bias\napp.model.blocks.0.up.weight\n");
  EXPECT_EQ(run_cli({"--print-keys", good, "app.m"}).out, "app.model.\n");
  EXPECT_EQ(run_cli({"--print-keys", path("none")}).status, 2);
  EXPECT_EQ(run_cli({"--print-keys"}).out, "");
}

}  // namespace
}  // namespace fsdp::cli
