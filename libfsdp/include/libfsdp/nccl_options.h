// SPDX-License-Identifier: Apache-2.0
// Options of NCCL, under PyTorch's names (ProcessGroupNCCL.Options).  Other backends ignore them.
#pragma once

#include <optional>
#include <string>

namespace fsdp {

// The configuration of NCCL's communicators.  Options that are left out have NCCL's defaults, or
// the value of its environment variable.
struct NcclConfig {
  // False: communicators are made and ended without blocking the thread.
  std::optional<bool> blocking;
  std::optional<int> cga_cluster_size;  // thread blocks of a cluster: 0 to 8
  std::optional<int> min_ctas;          // fewest thread blocks of a collective
  std::optional<int> max_ctas;          // most thread blocks: the multiprocessors that it takes
  std::optional<int> nvls_ctas;         // thread blocks for NVLink SHARP
  std::optional<int> cta_policy;        // NCCL_CTA_POLICY_...: 0 default, 1 efficient, 2 zero
  // True: subgroups that are split from this group share its resources.
  std::optional<bool> split_share;
  std::optional<int> traffic_class;
  std::optional<bool> collnet_enable;
  std::string net_name;  // "IB", "Socket", or that of a plugin; empty: NCCL chooses
};

struct NcclOptions {
  // Collectives run on streams of high priority.
  bool is_high_priority_stream = false;
  NcclConfig config;
  // True: subgroups are made by ncclCommSplit from their parent, without a new rendezvous.  False:
  // each subgroup connects on its own.
  bool split_from_parent = true;
  // The number of collectives that the flight recorder keeps (TORCH_FR_BUFFER_SIZE, by default
  // 2000); 0: none.  Must be set before the first group of the process.
  std::optional<int> trace_buffer_size;
};

// Throws: c10::Error naming the option that is out of its range.
void check_nccl_options(const NcclOptions& options);

}  // namespace fsdp
