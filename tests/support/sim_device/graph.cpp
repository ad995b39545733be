// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/graph.h"

#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

bool is_capturing(int device) {
  const Lock lock;
  return recording_of(device) != nullptr;
}

// Notes the accesses of work that is done again.
void note_again(const RecordedWork& work, const Access& now, int launch) {
  bool is_alive = true;
  for (const MemoryUse& use : work.uses) is_alive = note_access_again(now, use) && is_alive;
  if (!is_alive)
    report(std::string("a graph uses memory that was freed after its capture: ") + now.name,
           {{"captured", now.chain}, {"replayed", launch}});
}

}  // namespace

Graph::Graph(int device, int number, std::vector<RecordedWork> work)
    : device_(device), number_(number), work_(std::move(work)) {}

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_),
      number_(std::exchange(other.number_, 0)),
      work_(std::move(other.work_)) {}

Graph::~Graph() {
  if (number_ != 0) give_back_memory_of_graph(number_);
}

std::size_t Graph::work_count() const noexcept {
  return work_.size();
}

void Graph::replay() const {
  TORCH_CHECK(!is_capturing(device_), "a graph was replayed while device ", device_, " captures");
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(device_at(device_));
  const Access launch = begin_kernel(current_stream(device_), "a graph");
  count_replay(device_);
  for (const RecordedWork& work : work_) {
    const Access now{launch.stream, launch.time, work.access.name, work.access.chain};
    note_again(work, now, launch.chain);
    if (work.run) work.run(now);
  }
}

}  // namespace fsdp::test::sim
