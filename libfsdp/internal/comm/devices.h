// SPDX-License-Identifier: Apache-2.0
// Decisions that depend on the type of a device: the device of a rank, memory that it copies from,
// autocast.
#pragma once

#include <array>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace fsdp {
class ProcessGroup;
}

namespace fsdp::internal {

// The types of devices that have an autocast state.
inline constexpr std::array<c10::DeviceType, 3> kAutocastTypes{
    c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1};

// Returns the number of devices of a type that this process can use; 0 if the program does not
// contain their library.
int visible_devices(c10::DeviceType type) noexcept;

// Returns the name as in "cuda:0", without the index.
inline std::string name_of_type(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

// Returns whether tensors of the device lie in memory of the host.
inline bool is_host(c10::DeviceType type) noexcept {
  return type == c10::DeviceType::CPU;
}
inline bool is_host(const c10::Device& device) noexcept {
  return is_host(device.type());
}

// Returns whether copies between the device and the host can be asynchronous, for which the host's
// memory must be pinned.
bool copies_from_pinned_memory(const c10::Device& device) noexcept;

struct DeviceChoice {
  c10::DeviceType type = c10::DeviceType::CPU;
  std::optional<int> given;  // the index that the program asks for
  int visible = 0;           // devices of the type in this process
  int local_rank = 0;        // of this rank among those of its node
};

// Returns the device of a rank: the given one; else the only visible one, because launchers such as
// Slurm show each rank its own; else the one of the local rank.  The CPU has no index.
// Throws: c10::Error if that device is not visible.
c10::Device device_of_rank(const DeviceChoice& choice);

// Returns the device that tensors must be on for the collectives of a group.  Gloo's is the CPU,
// though it can move tensors of other devices by way of the CPU.
c10::Device collective_device(const ProcessGroup& group);

// Returns the device to compute on, given FsdpOptions::device_id and the device of the group.  If
// the group has a device other than the CPU, the option may leave it or its index out.  nullopt:
// neither names one.
// Throws: c10::Error naming both if they differ.
std::optional<c10::Device> device_to_compute_on(const std::optional<c10::Device>& device_id,
                                                const c10::Device& of_group);

}  // namespace fsdp::internal
