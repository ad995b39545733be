// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/device.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/backend.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/host_copies.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

constexpr std::uint64_t kSeed = 17;

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_installed(); }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of(data);
    TORCH_CHECK(device >= 0, "expected memory of a simulated device, but got memory of the host");
    return device_at(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    const Lock lock;
    static auto* const generators = new std::array<at::Generator, kMostDevices>;
    at::Generator& result =
        generators->at(static_cast<std::size_t>(device < 0 ? current_device() : device));
    if (!result.defined()) result = getNewGenerator(device);
    return result;
  }
  // Numbers are drawn on the CPU.
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator(kSeed);
  }
};

}  // namespace

void install(int devices) {
  open_arenas(devices);
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(c10::kPrivateUse1, device_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  register_backend_sim();
}

bool is_installed() noexcept {
  return device_count() != 0;
}

}  // namespace fsdp::test::sim
