// SPDX-License-Identifier: Apache-2.0
// The backend "sim" of process groups: collectives of simulated devices, ordered as
// ProcessGroupNCCL orders them.  Gloo moves the bytes between threads or processes.
//
// A collective runs on a stream of its group, after the work that is on the current stream when it
// is issued.  wait() blocks the current stream and not the host.  The collective keeps its tensors
// until somebody has waited, and forever if nobody does.
#pragma once

namespace fsdp::test::sim {

void register_backend_sim();

}  // namespace fsdp::test::sim
