// SPDX-License-Identifier: Apache-2.0
// tests/interop/lora_search.py compares square weights of experts with peft's own merge.
#include "formats/changes/lora/orientation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

ExpertsOrder order(const std::string& version, const std::string& model_type) {
  AdapterConfig config;
  config.version = version;
  return experts_order(config, model_type);
}

TEST(ExpertsOrder, versions_before_0_19_have_one_for_all_classes) {
  for (const char* version : {"0.18.0", "0.18.1", "0.9"}) {
    EXPECT_TRUE(order(version, "qwen3_moe").turned) << version;
    EXPECT_THAT(order(version, "").guess, IsEmpty()) << version;
  }
}

TEST(ExpertsOrder, later_ones_go_by_the_class) {
  for (const char* version : {"0.19.0", "0.19.1.dev0@abc", "0.21.2", "1.0"}) {
    EXPECT_FALSE(order(version, "qwen3_moe").turned) << version;
    EXPECT_THAT(order(version, "qwen3_moe").guess, IsEmpty()) << version;
    EXPECT_TRUE(order(version, "gpt_oss").turned) << version;
    EXPECT_FALSE(order(version, "llama4_text").turned) << version;
    EXPECT_THAT(order(version, "").guess, HasSubstr("no config.json names the class")) << version;
  }
}

TEST(ExpertsOrder, what_no_version_tells_is_said) {
  EXPECT_TRUE(order("", "qwen3_moe").turned);
  EXPECT_THAT(order("", "qwen3_moe").guess, HasSubstr("no peft_version"));
  EXPECT_THAT(order("", "gpt_oss").guess, IsEmpty());
  EXPECT_TRUE(order("dev", "").turned);
}

}  // namespace
}  // namespace fsdp::formats
