// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/nccl_options.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libfsdp/process_group.h"
#include "tests/libfsdp/error_of.h"

namespace fsdp {
namespace {

std::string error_with(const std::function<void(NcclOptions&)>& change) {
  NcclOptions options;
  change(options);
  return error_of([&] { check_nccl_options(options); });
}

TEST(NcclOptions, defaults_and_the_ends_of_ranges_are_accepted) {
  EXPECT_NO_THROW(check_nccl_options({}));
  NcclOptions options;
  options.config.cga_cluster_size = 8;
  options.config.min_ctas = options.config.max_ctas = 1;
  options.config.nvls_ctas = 1;
  options.config.cta_policy = 0;
  options.config.traffic_class = 0;
  options.config.blocking = false;
  options.trace_buffer_size = 0;
  EXPECT_NO_THROW(check_nccl_options(options));
}

TEST(NcclOptions, values_out_of_range_are_named) {
  EXPECT_EQ(error_with([](auto& o) { o.config.cga_cluster_size = 9; }),
            "NcclConfig::cga_cluster_size is 9; expected at most 8");
  EXPECT_EQ(error_with([](auto& o) { o.config.min_ctas = 0; }),
            "NcclConfig::min_ctas is 0; expected at least 1");
  EXPECT_EQ(error_with([](auto& o) { o.config.max_ctas = -1; }),
            "NcclConfig::max_ctas is -1; expected at least 1");
  EXPECT_EQ(error_with([](auto& o) { o.config.nvls_ctas = 0; }),
            "NcclConfig::nvls_ctas is 0; expected at least 1");
  EXPECT_EQ(error_with([](auto& o) { o.config.cta_policy = 3; }),
            "NcclConfig::cta_policy is 3; expected at most 2");
  EXPECT_EQ(error_with([](auto& o) { o.config.traffic_class = -1; }),
            "NcclConfig::traffic_class is -1; expected at least 0");
  EXPECT_EQ(error_with([](auto& o) { o.trace_buffer_size = -5; }),
            "NcclOptions::trace_buffer_size is -5; expected a number of collectives, 0 for none");
}

TEST(NcclOptions, the_least_is_not_above_the_most) {
  EXPECT_EQ(error_with([](auto& o) {
              o.config.min_ctas = 16;
              o.config.max_ctas = 8;
            }),
            "NcclConfig::min_ctas is 16, but max_ctas is 8; expected no more");
}

TEST(NcclOptions, groups_check_them_whatever_their_backend) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.nccl.config.min_ctas = 0;
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "NcclConfig::min_ctas is 0; expected at least 1");
}

}  // namespace
}  // namespace fsdp
