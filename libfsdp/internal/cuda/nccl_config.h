// SPDX-License-Identifier: Apache-2.0
// A request for a group, as options of ProcessGroupNCCL.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libfsdp/internal/comm/backend_registry.h"

namespace fsdp::internal {

// Converts the request; needs no device.  Options that the request leaves out stay at NCCL's
// "undefined": NCCL then takes its environment variable or its default.
// Throws: c10::Error naming an option that the NCCL of this build does not have.
c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> nccl_options_of(const BackendRequest& request);

}  // namespace fsdp::internal
