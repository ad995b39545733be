// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/call_state.h"

#include "libfsdp/internal/peer_error.h"
#include "libfsdp/internal/rank_monitor.h"

namespace fsdp {

std::uint64_t enter_collective(ProcessGroup& group, const std::string& what) {
  const std::uint64_t sequence = ++group.calls().sequence;
  group.monitor().entered(group.name(), sequence, what);
  return sequence;
}

void throw_lost(ProcessGroup& group, const std::string& what, const std::string& why) {
  group.monitor().lost();
  const std::string diagnosis = group.monitor().diagnosis();
  throw_peer_error(what + ": " + why + (diagnosis.empty() ? "" : "; " + diagnosis));
}

}  // namespace fsdp
