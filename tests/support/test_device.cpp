// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test {

bool on_sim() noexcept {
  return sim::is_installed();
}

c10::Device device_of_rank(int rank) {
  return on_sim() ? sim::device_at(rank) : c10::Device(c10::kCPU);
}

std::optional<c10::Device> device_id_of_rank(int rank) {
  return on_sim() ? std::optional(device_of_rank(rank)) : std::nullopt;
}

void let_devices_keep_up() {
  if (on_sim()) sim::set_progress(sim::Progress::kEager);
}

std::string backend_of_devices() {
  return on_sim() ? "sim" : "gloo";
}

}  // namespace fsdp::test
