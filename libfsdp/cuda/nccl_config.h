// SPDX-License-Identifier: Apache-2.0
// A request for a group, as options of ProcessGroupNCCL.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libfsdp/internal/comm/backend_registry.h"

namespace fsdp::internal {

// Needs no device.  What the request leaves out stays at NCCL's "undefined", for which NCCL takes
// its environment variable or its default. Throws: c10::Error naming an option that the NCCL of
// this build does not have.
c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> nccl_options_of(const BackendRequest& request);

}  // namespace fsdp::internal
