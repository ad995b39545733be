// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/cuda/nccl_config.h"

#include <mutex>
#include <set>
#include <string>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

// Returns the same text in memory that is never freed: NCCL's configurations are copied with a
// pointer to it.
const char* kept(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

template <typename T>
void set_if_given(int& place, const std::optional<T>& value) {
  if (value) place = static_cast<int>(*value);
}

[[maybe_unused]] void refuse_if_given(bool given, const char* name) {
  FSDP_CHECK(!given, "NcclConfig::", name,
             " needs a newer NCCL than the one of this build; leave it out");
}

void configure(ncclConfig_t& config, const NcclConfig& given) {
  set_if_given(config.blocking, given.blocking);
  set_if_given(config.cgaClusterSize, given.cga_cluster_size);
  set_if_given(config.minCTAs, given.min_ctas);
  set_if_given(config.maxCTAs, given.max_ctas);
  set_if_given(config.splitShare, given.split_share);
  if (!given.net_name.empty()) config.netName = kept(given.net_name);
#ifdef NCCL_HAS_QOS
  set_if_given(config.trafficClass, given.traffic_class);
#else
  refuse_if_given(given.traffic_class.has_value(), "traffic_class");
#endif
#ifdef NCCL_HAS_COLLNET
  set_if_given(config.collnetEnable, given.collnet_enable);
#else
  refuse_if_given(given.collnet_enable.has_value(), "collnet_enable");
#endif
#ifdef NCCL_HAS_CTA_POLICY
  set_if_given(config.CTAPolicy, given.cta_policy);
#else
  refuse_if_given(given.cta_policy.has_value(), "cta_policy");
#endif
#ifdef NCCL_HAS_NVLS_CTAS
  set_if_given(config.nvlsCTAs, given.nvls_ctas);
#else
  refuse_if_given(given.nvls_ctas.has_value(), "nvls_ctas");
#endif
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> nccl_options_of(const BackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create(request.nccl.is_high_priority_stream);
  options->timeout = request.timeout;
  options->group_name = request.group;
  options->global_ranks_in_group = request.global_ranks;
  configure(options->config, request.nccl.config);
  const auto parent = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(request.parent);
  if (parent && request.nccl.split_from_parent) {
    options->split_from = parent;
    options->split_color = request.color;
  }
  return options;
}

}  // namespace fsdp::internal
