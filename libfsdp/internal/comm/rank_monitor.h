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
#include <utility>

namespace fsdp::internal {

class StoreClient;

// Thread-safe.
class RankMonitor {
 public:
  // The monitor of `size` ranks whose notes lie below `prefix` at the client's store.  This rank's
  // first note is there when the constructor returns.
  RankMonitor(std::shared_ptr<StoreClient> client, const std::string& prefix, int rank, int size);
  // The monitor of a single rank.
  RankMonitor();
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  // Records that this rank enters a collective, number `sequence` of this group, called `what`
  // ("all-gather of blocks.1").  Cheap: the note reaches the store about once a second, from a
  // thread of the monitor.
  void entered(const std::string& group, std::uint64_t sequence, const std::string& what);

  // Reports at once that this rank will not enter the collectives that others may wait in, because
  // its forward or backward threw.  Never throws (the store may be gone).
  void failed(const std::string& message) noexcept;
  // Withdraws failed(): this rank goes on after all.
  void recovered() noexcept;
  // Reports a broken collective: if this rank fails or ends later, another rank did so first.
  void lost() noexcept;

  // Sets `call`, which runs when this rank first loses others or fails, in the reporting thread.
  // It must not throw.  Call before the ranks communicate.
  void call_on_trouble(std::function<void()> call) { on_trouble_ = std::move(call); }

  // Describes the other ranks that failed, were killed, are stopped or behind, most telling
  // first: "rank 2 failed: <message>", "rank 1 has given no sign of life for 8 s", "rank 3 is at
  // all-gather of blocks.0, 2 collectives behind".  Empty if nothing is known.  Takes some
  // seconds if no rank reported a failure, to see which of them show signs of life.  Never
  // throws.
  std::string diagnosis() noexcept;
  // Returns whether another rank reported a failure; cheaper than diagnosis().
  bool any_failed() noexcept;
  // Names a rank at the same position of its group's order as this one, but in another collective:
  // "rank 1 is at all-gather of emb".  Empty if none is known.
  std::string elsewhere(const std::string& group) noexcept;
  // For threads that wait: call repeatedly.  Makes the monitor read the others' notes for the next
  // seconds, so that diagnosis() is quicker.
  void watch() noexcept;
  // Reports at once that the process of another rank has ended (see lifeline.h), unless that rank
  // itself reported that it leaves or failed.  Never throws.
  void ended(int global_rank) noexcept;
  // For threads that wait for long: as diagnosis(), but only from what is known already, so it
  // takes no time. nullopt until watch() has made the monitor read the others for some seconds.
  std::optional<std::string> suspects() noexcept;
  // Returns whether the process that serves the store has ended, see StoreClient::gone().
  bool server_has_ended() noexcept;
  // Returns whether a rank has left its group; false until watch() made the monitor read notes.
  bool has_ended(int global_rank) noexcept;
  // For the rank that serves the store, when it ends.  If it failed or lost others, waits, for some
  // seconds at most, until the other ranks have ended or show no sign of life: they read at its
  // store why it ended.
  void linger() noexcept;

 private:
  struct Board;

  void change(bool failed, const std::string& message) noexcept;
  std::string look();

  const std::shared_ptr<StoreClient> client_;  // null: there is no other rank
  const std::shared_ptr<Board> board_;
  std::function<void()> on_trouble_;  // may be null
};

}  // namespace fsdp::internal
