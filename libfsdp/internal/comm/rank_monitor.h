// SPDX-License-Identifier: Apache-2.0
// Tells which rank a collective waits for.  A collective that hangs reports only that time is up.
// The monitor knows which rank stopped, died, failed, or is behind, because every rank keeps a note
// about itself at the store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace fsdp::internal {

class StoreClient;

// Thread-safe.
class RankMonitor {
 public:
  virtual ~RankMonitor() = default;

  // Records that this rank enters a collective, number `sequence` of this group, called `what`
  // ("all-gather of blocks.1").  Cheap: the note reaches the store about once a second, from a
  // thread of the monitor.
  virtual void entered(const std::string& group, std::uint64_t sequence,
                       const std::string& what) = 0;

  // Reports at once that this rank will not enter the collectives that others may wait in, because
  // its forward or backward threw.  Never throws (the store may be gone).
  virtual void failed(const std::string& message) noexcept = 0;
  // Withdraws failed(): this rank goes on after all.
  virtual void recovered() noexcept = 0;
  // Reports a broken collective: if this rank fails or ends later, another rank did so first.
  virtual void lost() noexcept = 0;

  // Sets `call`, which runs when this rank first loses others or fails, in the reporting thread.
  // It must not throw.  Call before the ranks communicate.
  virtual void call_on_trouble(std::function<void()> call) = 0;

  // Describes the other ranks that failed, were killed, are stopped or behind, most telling
  // first: "rank 2 failed: <message>", "rank 1 has given no sign of life for 8 s", "rank 3 is at
  // all-gather of blocks.0, 2 collectives behind".  Empty if nothing is known.  Takes some
  // seconds if no rank reported a failure, to see which of them show signs of life.  Never
  // throws.
  virtual std::string diagnosis() noexcept = 0;
  // Returns whether another rank reported a failure; cheaper than diagnosis().
  virtual bool any_failed() noexcept = 0;
  // Names a rank at the same position of its group's order as this one, but in another collective:
  // "rank 1 is at all-gather of emb".  Empty if none is known.
  virtual std::string elsewhere(const std::string& group) noexcept = 0;
  // For threads that wait: call repeatedly.  Makes the monitor read the others' notes for the next
  // seconds, so that diagnosis() is quicker.
  virtual void watch() noexcept = 0;
  // Reports at once that the process of another rank has ended (see lifeline.h), unless that rank
  // itself reported that it leaves or failed.  Never throws.
  virtual void ended(int global_rank) noexcept = 0;
  // For threads that wait for long: as diagnosis(), but only from what is known already, so it
  // takes no time. nullopt until watch() has made the monitor read the others for some seconds.
  virtual std::optional<std::string> suspects() noexcept = 0;
  // Returns whether the process that serves the store has ended, see StoreClient::gone().
  virtual bool server_has_ended() noexcept = 0;
  // Returns whether a rank has left its group; false until watch() made the monitor read notes.
  virtual bool has_ended(int global_rank) noexcept = 0;
  // For the rank that serves the store, when it ends.  If it failed or lost others, waits, for some
  // seconds at most, until the other ranks have ended or show no sign of life: they read at its
  // store why it ended.
  virtual void linger() noexcept = 0;
};

// Makes the monitor of `size` ranks whose notes lie below `prefix` at the client's store.  Its
// first note is there when the function returns.
std::shared_ptr<RankMonitor> make_rank_monitor(std::shared_ptr<StoreClient> client,
                                               const std::string& prefix, int rank, int size);
// Makes the monitor of a single rank.
std::shared_ptr<RankMonitor> make_lone_monitor();

}  // namespace fsdp::internal
