// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/host_copies.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

struct HostCopy {
  Access access;
  bool to_host = false;
  char* memory = nullptr;
  std::vector<char> bytes;  // that arrive, or that the source had
};

struct PinnedBlock {
  std::size_t bytes = 0;
  std::uint64_t number = 0;  // different for each block
  int copies = 0;            // that are not over
  bool is_freed = false;
};

std::vector<HostCopy>& copies_of(int device) {
  static auto* const all = new std::array<std::vector<HostCopy>, kMostDevices>;
  return all->at(static_cast<std::size_t>(device));
}

std::map<std::uintptr_t, PinnedBlock>& pinned() {
  static auto* const instance = new std::map<std::uintptr_t, PinnedBlock>;
  return *instance;
}

// Returns the block of an address; the end for other memory.
std::map<std::uintptr_t, PinnedBlock>::iterator block_of(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto block = pinned().upper_bound(at);
  if (block == pinned().begin()) return pinned().end();
  --block;
  return at < block->first + block->second.bytes ? block : pinned().end();
}

// Keeps memory until the copies that use it are over, as a device's caching allocator does.
void free_pinned(void* memory) {
  const Lock lock;
  const auto block = block_of(memory);
  if (block->second.copies != 0) {
    block->second.is_freed = true;
    return;
  }
  pinned().erase(block);
  std::free(memory);
}

void free_nothing(void*) {}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_nothing, c10::Device(c10::kCPU)};
    refuse_in_capture(current_device(), "pinned memory is allocated");
    const Lock lock;
    static std::uint64_t numbers = 0;
    constexpr std::size_t kAlignment = 64;
    void* const memory =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    pinned().emplace(reinterpret_cast<std::uintptr_t>(memory), PinnedBlock{bytes, ++numbers});
    return {memory, memory, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

void queue(const Access& access, const at::Tensor& host, bool to_host) {
  const Lock lock;
  const int device = device_of_stream(access.stream);
  auto* const memory = static_cast<char*>(host.mutable_data_ptr());
  copies_of(device).push_back({access, to_host, memory, {memory, memory + host.nbytes()}});
  ++block_of(memory)->second.copies;
  ++counting(device).unwaited_copies;
}

void end(const HostCopy& copy) {
  const auto block = block_of(copy.memory);
  --block->second.copies;
  if (block->second.is_freed) {
    if (block->second.copies == 0) free_pinned(reinterpret_cast<void*>(block->first));
  } else if (copy.to_host) {
    std::memcpy(copy.memory, copy.bytes.data(), copy.bytes.size());
  } else if (std::memcmp(copy.memory, copy.bytes.data(), copy.bytes.size()) != 0) {
    report("the host changed pinned memory before a copy of it to the device was over",
           {{"copy", copy.access.chain}});
  }
}

}  // namespace

c10::Allocator* pinned_allocator() {
  static PinnedAllocator instance;
  return &instance;
}

bool is_pinned(const void* address) {
  const Lock lock;
  return block_of(address) != pinned().end();
}

void queue_copy_to_host(const Access& copy, const at::Tensor& host) {
  queue(copy, host, true);
  std::memset(host.mutable_data_ptr(), kPoison, host.nbytes());
}

void queue_copy_from_host(const Access& copy, const at::Tensor& host) {
  queue(copy, host, false);
}

PinnedBytes::PinnedBytes(const at::Tensor& host)
    : memory_(host.mutable_data_ptr()),
      sizes_(host.sizes().vec()),
      options_(host.options().pinned_memory(std::nullopt)) {
  const Lock lock;
  number_ = block_of(memory_)->second.number;
}

at::Tensor PinnedBytes::tensor(const Access& now) const {
  const Lock lock;
  const auto block = block_of(memory_);
  if (block != pinned().end() && block->second.number == number_ && !block->second.is_freed)
    return at::from_blob(memory_, sizes_, options_);
  report(std::string("a graph uses pinned memory that was freed after its capture: ") + now.name,
         {{"captured", now.chain}});
  return {};
}

void deliver_host_copies(int device) {
  const Lock lock;
  std::vector<HostCopy>& copies = copies_of(device);
  std::vector<HostCopy> waiting;
  for (HostCopy& copy : std::exchange(copies, {})) {
    if (host_knows(device, copy.access.stream, copy.access.time)) {
      end(copy);
    } else {
      waiting.push_back(std::move(copy));
    }
  }
  copies = std::move(waiting);
}

}  // namespace fsdp::test::sim
