// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {
int visible_devices(c10::DeviceType type) noexcept {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

bool copies_from_pinned_memory(const c10::Device& device) noexcept {
  return !is_host(device) && !device.is_meta();
}

c10::Device device_of_rank(const DeviceChoice& choice) {
  if (is_host(choice.type)) return c10::kCPU;
  const std::string name = name_of_type(choice.type);
  FSDP_CHECK(choice.visible > 0, "expected a ", name,
             " device for this rank, but this process sees none",
             choice.type == c10::DeviceType::CUDA
                 ? "; check that the program links fsdp::cuda, the driver and "
                   "CUDA_VISIBLE_DEVICES, or use backend gloo and the CPU"
                 : "");
  const auto at = [&](int index) {
    return c10::Device(choice.type, static_cast<c10::DeviceIndex>(index));
  };
  if (choice.given) {
    FSDP_CHECK(*choice.given >= 0 && *choice.given < choice.visible, "device_id is ", name, ":",
               *choice.given, ", but this process sees ", choice.visible, " ", name,
               " devices, counted from 0");
    return at(*choice.given);
  }
  if (choice.visible == 1) return at(0);
  FSDP_CHECK(choice.local_rank < choice.visible, "expected a ", name,
             " device for each rank of the node, but local rank ", choice.local_rank, " sees ",
             choice.visible,
             ": start fewer ranks on a node, show each rank a device of its own, or set "
             "ProcessGroupOptions::device_id or local_rank");
  return at(choice.local_rank);
}

c10::Device collective_device(const ProcessGroup& group) {
  if (is_host(backend_kind(group.backend_name()).device_type)) return c10::kCPU;
  return group.device();
}

std::optional<c10::Device> device_to_compute_on(const std::optional<c10::Device>& device_id,
                                                const c10::Device& of_group) {
  if (is_host(of_group)) return device_id;
  if (!device_id) return of_group;
  FSDP_CHECK(device_id->type() == of_group.type() &&
                 (!device_id->has_index() || device_id->index() == of_group.index()),
             "FsdpOptions::device_id is ", device_id->str(),
             ", but the process group of this rank uses ", of_group.str(),
             ": leave device_id out, or give the same device to ProcessGroupOptions::device_id");
  return of_group;
}

}  // namespace fsdp::internal
