// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/nccl_options.h"

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
namespace {

constexpr int kMostCtasOfCluster = 8;
constexpr int kLastCtaPolicy = 2;

void check_nccl_range(const char* name, const std::optional<int>& value, int least,
                      std::optional<int> most = std::nullopt) {
  if (!value) return;
  FSDP_CHECK(*value >= least, "NcclConfig::", name, " is ", *value, "; expected at least ", least);
  FSDP_CHECK(!most || *value <= *most, "NcclConfig::", name, " is ", *value, "; expected at most ",
             *most);
}

}  // namespace

void check_nccl_options(const NcclOptions& options) {
  const NcclConfig& config = options.config;
  check_nccl_range("cga_cluster_size", config.cga_cluster_size, 0, kMostCtasOfCluster);
  check_nccl_range("min_ctas", config.min_ctas, 1);
  check_nccl_range("max_ctas", config.max_ctas, 1);
  check_nccl_range("nvls_ctas", config.nvls_ctas, 1);
  check_nccl_range("cta_policy", config.cta_policy, 0, kLastCtaPolicy);
  check_nccl_range("traffic_class", config.traffic_class, 0);
  FSDP_CHECK(!config.min_ctas || !config.max_ctas || *config.min_ctas <= *config.max_ctas,
             "NcclConfig::min_ctas is ", config.min_ctas.value_or(0), ", but max_ctas is ",
             config.max_ctas.value_or(0), "; expected no more");
  FSDP_CHECK(!options.trace_buffer_size || *options.trace_buffer_size >= 0,
             "NcclOptions::trace_buffer_size is ", options.trace_buffer_size.value_or(0),
             "; expected a number of collectives, 0 for none");
}

}  // namespace fsdp
