// SPDX-License-Identifier: Apache-2.0
// None of these needs a device.
#include "libfsdp/internal/cuda/nccl_config.h"

#include <gtest/gtest.h>

namespace fsdp {
using namespace internal;
namespace {

BackendRequest a_request() {
  BackendRequest request;
  request.group = "fsdp/1";
  request.timeout = std::chrono::seconds(90);
  request.global_ranks = {4, 7};
  return request;
}

TEST(NcclConfig, options_that_are_left_out_stay_undefined) {
  const auto options = nccl_options_of(a_request());
  const ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(options->config.minCTAs, defaults.minCTAs);
  EXPECT_EQ(options->config.maxCTAs, defaults.maxCTAs);
  EXPECT_EQ(options->config.cgaClusterSize, defaults.cgaClusterSize);
  EXPECT_EQ(options->config.splitShare, defaults.splitShare);
  EXPECT_EQ(options->config.netName, defaults.netName);
#ifdef NCCL_HAS_QOS
  EXPECT_EQ(options->config.trafficClass, defaults.trafficClass);
#endif
  EXPECT_FALSE(options->is_high_priority_stream);
  EXPECT_EQ(options->split_from, nullptr);
  EXPECT_EQ(options->timeout, std::chrono::seconds(90));
  EXPECT_EQ(options->group_name, "fsdp/1");
  EXPECT_EQ(options->global_ranks_in_group, (std::vector<std::uint64_t>{4, 7}));
}

TEST(NcclConfig, options_that_are_given_arrive) {
  auto request = a_request();
  request.nccl.is_high_priority_stream = true;
  auto& config = request.nccl.config;
  config.blocking = false;
  config.cga_cluster_size = 2;
  config.min_ctas = 4;
  config.max_ctas = 16;
  config.split_share = true;
  config.net_name = "Socket";
  const auto options = nccl_options_of(request);
  EXPECT_TRUE(options->is_high_priority_stream);
  EXPECT_EQ(options->config.blocking, 0);
  EXPECT_EQ(options->config.cgaClusterSize, 2);
  EXPECT_EQ(options->config.minCTAs, 4);
  EXPECT_EQ(options->config.maxCTAs, 16);
  EXPECT_EQ(options->config.splitShare, 1);
  // NCCL keeps the pointer: the name outlives the request.
  request.nccl.config.net_name = "IB";
  EXPECT_STREQ(options->config.netName, "Socket");
}

TEST(NcclConfig, options_of_newer_versions_arrive_where_the_header_has_them) {
  const auto set = [](auto member, int value) {
    auto request = a_request();
    (request.nccl.config.*member) = value;
    return nccl_options_of(request);
  };
#ifdef NCCL_HAS_QOS
  EXPECT_EQ(set(&NcclConfig::traffic_class, 3)->config.trafficClass, 3);
#else
  EXPECT_THROW(set(&NcclConfig::traffic_class, 3), c10::Error);
#endif
#ifdef NCCL_HAS_CTA_POLICY
  EXPECT_EQ(set(&NcclConfig::cta_policy, 1)->config.CTAPolicy, 1);
#else
  EXPECT_THROW(set(&NcclConfig::cta_policy, 1), c10::Error);
#endif
#ifdef NCCL_HAS_NVLS_CTAS
  EXPECT_EQ(set(&NcclConfig::nvls_ctas, 8)->config.nvlsCTAs, 8);
#else
  EXPECT_THROW(set(&NcclConfig::nvls_ctas, 8), c10::Error);
#endif
}

}  // namespace
}  // namespace fsdp
