// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/call_state.h"

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/rank_monitor.h"

namespace fsdp::internal {

void enter_collective(ProcessGroup& group, const std::string& what) {
  group.monitor().entered(group.name(), ++group.calls().sequence, what);
}

bool others_failed(ProcessGroup& group) noexcept {
  if (group.monitor().any_failed()) return true;
  // Called for every wait of an accelerator, so the members are looked at last.
  if (!group.monitor().server_has_ended()) return false;
  bool serves = false;
  for (int rank = 0; rank < group.size(); ++rank) serves = serves || group.global_rank(rank) == 0;
  return serves;
}

void throw_lost(ProcessGroup& group, const std::string& what, const std::string& why) {
  group.monitor().lost();
  const std::string diagnosis = group.monitor().diagnosis();
  throw_peer_error(what + ": " + why + (diagnosis.empty() ? "" : "; " + diagnosis));
}

}  // namespace fsdp::internal
