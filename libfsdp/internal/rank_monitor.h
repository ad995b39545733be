// SPDX-License-Identifier: Apache-2.0
// Tells who a collective waits for.  A collective that hangs says only that time is up; the monitor
// knows which rank stopped, died, failed, or is behind, because every rank keeps a note of its own
// at the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace fsdp {

class RankMonitor {
 public:
  virtual ~RankMonitor() = default;

  // This rank is about to wait for a collective, its `sequence`th of the group, and calls it `what`
  // ("all-gather of blocks.1").  Cheap: the note reaches the store about once a second, from a
  // thread of the monitor's own.
  virtual void entered(std::uint64_t sequence, const std::string& what) = 0;

  // This rank will not enter the collectives the others may wait in: its forward or backward threw.
  // Known to the others at once.  Never throws (the store may be gone).
  virtual void failed(const std::string& message) noexcept = 0;
  // It goes on after all.
  virtual void recovered() noexcept = 0;

  // The other ranks that failed, were killed, are stopped or behind, one line each, most telling
  // first: "rank 2 failed: <message>", "rank 1 has given no sign of life for 8 s", "rank 3 is at
  // all-gather of blocks.0, 2 collectives behind".  Empty where nothing is known.  Never throws.
  virtual std::string diagnosis() noexcept = 0;
  // Whether a rank said that it failed; cheaper than diagnosis().
  virtual bool any_failed() noexcept = 0;
};

}  // namespace fsdp
