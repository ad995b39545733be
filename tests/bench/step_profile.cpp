// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/step_profile.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace fsdp::bench {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

StepProfiler::StepProfiler(const c10::Device& device) : device_(device.type()) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device_ == c10::DeviceType::CUDA) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

StepProfiler::~StepProfiler() {
  if (!ended_) profiler::disableProfiler();
}

StepProfile StepProfiler::end(const std::string& trace) {
  ended_ = true;
  const auto result = profiler::disableProfiler();
  if (!trace.empty()) result->save(trace);
  StepProfile profile;
  if (device_ == c10::DeviceType::CPU) return profile;
  // Of events that overlap, on several streams, each moment counts once.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const auto& event : result->events()) {
    if (event.deviceType() == device_) spans.emplace_back(event.startNs(), event.endNs());
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t busy = 0;
  std::uint64_t until = 0;
  for (const auto& [begin, end] : spans) {
    if (end <= until) continue;
    busy += end - std::max(begin, until);
    until = end;
  }
  profile.busy_ms = static_cast<double>(busy) / 1e6;
  profile.kernels = static_cast<std::int64_t>(spans.size());
  return profile;
}

}  // namespace fsdp::bench
