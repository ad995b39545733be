// SPDX-License-Identifier: Apache-2.0
// The device that tests of libfsdp train on: the CPU, or a simulated one for each rank (see
// sim_device/device.h) if the environment has FSDP_TEST_DEVICE=sim.
//
// A test that cannot run on a device of its own skips itself and says why:
//   if (on_sim()) GTEST_SKIP() << "reads parameters through data_ptr()";
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace fsdp::test {

bool on_sim() noexcept;
// Returns the device of a rank.
c10::Device device_of_rank(int rank);
// Returns the device for FsdpOptions::device_id, which is not needed on the CPU.
std::optional<c10::Device> device_id_of_rank(int rank);
// Until the test ends, queries find the work of simulated devices over: errors that are found late
// on an accelerator are found at once.
void let_devices_keep_up();
// Returns the backend for groups whose tensors are on the ranks' devices.
std::string backend_of_devices();

}  // namespace fsdp::test
