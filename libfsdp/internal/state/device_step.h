// SPDX-License-Identifier: Apache-2.0
// Counts of steps on the device, which a graph can increment.  The host's count beside them may be
// older.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace fsdp::internal {

// A second base class for states of parameters, beside torch::optim::OptimizerParamState.
class HasDeviceStep {
 public:
  // Returns the count; waits for the device.
  std::int64_t count() const { return static_cast<std::int64_t>(device_step.item<float>()); }

  at::Tensor device_step;  // one float32, on the parameter's device

 protected:
  explicit HasDeviceStep(at::Tensor step) : device_step(std::move(step)) {}
  HasDeviceStep(const HasDeviceStep&) = default;
  HasDeviceStep& operator=(const HasDeviceStep&) = default;
  ~HasDeviceStep() = default;
};

}  // namespace fsdp::internal
