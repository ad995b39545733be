// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/waits.h"

#include <thread>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {
namespace {

// Limits the time in which the monitor learns about the others.
constexpr std::chrono::seconds kPatience(5);
// Short beside the computation of a unit, and long beside a query.
constexpr std::chrono::microseconds kBetweenQueries(20);
constexpr std::chrono::milliseconds kBetweenLooks(1000);

}  // namespace

bool others_failed(const ProcessGroup& group) noexcept {
  RankMonitor& monitor = monitor_of(group);
  if (monitor.any_failed()) return true;
  // Called for every wait of an accelerator, so the members are looked at last.
  if (!monitor.server_has_ended()) return false;
  bool serves = false;
  for (int rank = 0; rank < group.size(); ++rank) serves = serves || group.global_rank(rank) == 0;
  return serves;
}

void throw_lost(const ProcessGroup& group, const std::string& what, const std::string& why) {
  RankMonitor& monitor = monitor_of(group);
  monitor.lost();
  const std::string diagnosis = monitor.diagnosis();
  throw PeerError(what + ": " + why + (diagnosis.empty() ? "" : "; " + diagnosis));
}

void LongWait::look() {
  const auto waited = Clock::now() - began_;
  RankMonitor& monitor = monitor_of(group_);
  monitor.watch();
  if (waited < next_) return;
  const auto suspects = monitor.suspects();
  // If nothing is known about the others even then, warns without naming them.
  if (!suspects && waited < next_ + kPatience) return;
  next_ = 2 * waited;
  TORCH_WARN("rank ", group_.global_rank(group_.rank()), " has waited ",
             duration_text(std::chrono::duration_cast<std::chrono::milliseconds>(waited)), " for ",
             what_, suspects && !suspects->empty() ? "; " + *suspects : "");
}

void wait_for_event(const ProcessGroup& group, const c10::Event& event, const std::string& what) {
  if (is_left_out("wait_for_event")) return;
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
