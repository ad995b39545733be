// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/long_wait.h"

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {
namespace {

// Limits the time in which the monitor learns about the others.
constexpr std::chrono::seconds kPatience(5);

}  // namespace

LongWait::LongWait(ProcessGroup& group, const std::string& what)
    : group_(group), what_(what), next_(group.warn_after()) {}

void LongWait::look() {
  const auto waited = Clock::now() - began_;
  group_.monitor().watch();
  if (waited < next_) return;
  const auto suspects = group_.monitor().suspects();
  // If nothing is known about the others even then, warns without naming them.
  if (!suspects && waited < next_ + kPatience) return;
  next_ = 2 * waited;
  TORCH_WARN("rank ", group_.global_rank(group_.rank()), " has waited ",
             duration_text(std::chrono::duration_cast<std::chrono::milliseconds>(waited)), " for ",
             what_, suspects && !suspects->empty() ? "; " + *suspects : "");
}

}  // namespace fsdp::internal
