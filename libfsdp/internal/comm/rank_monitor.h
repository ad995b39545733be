// SPDX-License-Identifier: Apache-2.0
// Tells who a collective waits for.  A collective that hangs says only that time is up; the monitor
// knows which rank stopped, died, failed, or is behind, because every rank keeps a note of its own
// at the store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

class StoreClient;

// Thread-safe.
class RankMonitor {
 public:
  virtual ~RankMonitor() = default;

  // This rank enters a collective, the `sequence`th of the group of that name, and calls it `what`
  // ("all-gather of blocks.1").  Cheap: the note reaches the store about once a second, from a
  // thread of the monitor's own.
  virtual void entered(const std::string& group, std::uint64_t sequence,
                       const std::string& what) = 0;

  // This rank will not enter the collectives the others may wait in: its forward or backward threw.
  // Known to the others at once.  Never throws (the store may be gone).
  virtual void failed(const std::string& message) noexcept = 0;
  // It goes on after all.
  virtual void recovered() noexcept = 0;
  // A collective of this rank broke: when it fails or ends now, others did so before.
  virtual void lost() noexcept = 0;

  // The other ranks that failed, were killed, are stopped or behind, one after another, most
  // telling first: "rank 2 failed: <message>", "rank 1 has given no sign of life for 8 s", "rank 3
  // is at all-gather of blocks.0, 2 collectives behind".  Empty where nothing is known.  Takes some
  // seconds where no rank said that it failed, to see which of them show signs of life.  Never
  // throws.
  virtual std::string diagnosis() noexcept = 0;
  // Whether another rank said that it failed; cheaper than diagnosis().
  virtual bool any_failed() noexcept = 0;
  // A rank that is in the same place of its group's order as this one, in another collective: "rank
  // 1 is at all-gather of emb".  Empty where none is known to be.
  virtual std::string elsewhere(const std::string& group) noexcept = 0;
  // For those that wait, again and again: has the monitor look at the others for the next seconds,
  // so that diagnosis() is quicker.
  virtual void watch() noexcept = 0;
  // The process of another rank was found to have ended (see lifeline.h): the others know it at
  // once, unless it said itself that it leaves or failed.  Never throws.
  virtual void ended(int global_rank) noexcept = 0;
  // For those that wait for long: as diagnosis(), from what is known already, so that it takes no
  // time.  nullopt before watch() has had the monitor look at the others for some seconds.
  virtual std::optional<std::string> suspects() noexcept = 0;
  // Whether a rank left its group, as far as one that watches knows.
  virtual bool has_ended(int global_rank) noexcept = 0;
  // For the rank that serves the store, when it ends.  Where it failed or lost others, returns when
  // these have ended or show no sign of life, after some seconds at most: what became of it is told
  // by its store.
  virtual void linger() noexcept = 0;
};

// Of `size` ranks whose notes lie below `prefix` at the client's store.  Its first note is there
// when the function returns.
std::shared_ptr<RankMonitor> make_rank_monitor(std::shared_ptr<StoreClient> client,
                                               const std::string& prefix, int rank, int size);
// Of a rank without others.
std::shared_ptr<RankMonitor> make_lone_monitor();

}  // namespace fsdp
