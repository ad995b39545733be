// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/device_wait.h"

#include <chrono>
#include <thread>

#include "libfsdp/internal/comm/call_state.h"
#include "libfsdp/internal/comm/long_wait.h"
#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {
namespace {

// Short beside the computation of a unit, and long beside a query.
constexpr std::chrono::microseconds kBetweenQueries(20);
constexpr std::chrono::milliseconds kBetweenLooks(1000);

}  // namespace

void wait_for_event(ProcessGroup& group, const c10::Event& event, const std::string& what,
                    CallSite site) {
  if (is_left_out("wait_for_event", site)) return;
  using Time = std::chrono::steady_clock;
  const Time::time_point began = Time::now();
  Time::time_point looked = began;
  LongWait long_wait(group, what);
  while (!event.query()) {
    std::this_thread::sleep_for(kBetweenQueries);
    const Time::time_point now = Time::now();
    if (now - looked < kBetweenLooks) continue;
    looked = now;
    long_wait.look();
    if (others_failed(group)) throw_lost(group, what, "another rank failed");
    if (now - began >= group.timeout())
      throw_lost(group, what, "the device was not done within " + duration_text(group.timeout()));
  }
}

}  // namespace fsdp::internal
