// SPDX-License-Identifier: Apache-2.0
// What the device does in a step, by LibTorch's profiler; train_step.py counts alike.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace fsdp::bench {

struct StepProfile {
  double busy_ms = 0;        // the device had at least one kernel or copy to do
  std::int64_t kernels = 0;  // and copies
};

class StepProfiler {
 public:
  // Profiles what this thread issues from now on.
  explicit StepProfiler(const c10::Device& device);
  ~StepProfiler();  // drops what end() did not take
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  // Requires: the device has done what was issued.  Writes the trace, for chrome://tracing, if
  // `trace` is not empty.
  StepProfile end(const std::string& trace);

 private:
  const c10::DeviceType device_;
  bool ended_ = false;
};

}  // namespace fsdp::bench
