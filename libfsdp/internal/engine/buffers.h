// SPDX-License-Identifier: Apache-2.0
// Lends the buffers of gathers and reductions: the same memory in every step.
//
// Note [order of a buffer's users]: the host takes a buffer back while streams of an accelerator
// still work on it.  The next user gets the buffer at once, and its lane is ordered after the
// streams that used the buffer: the device waits, the host goes on.  So however far the host is
// ahead, the memory in use is what is lent at once: at most what two gathers need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "libfsdp/internal/engine/streams.h"

namespace fsdp::internal {

// The purpose of a lent buffer.
enum class Use { kParameters, kGradients };

class Buffers {
 public:
  // `limited`: see FsdpOptions::limit_all_gathers.  If false, buffers of parameters on an
  // accelerator come fresh from its allocator, and nothing waits for them.
  Buffers(Streams& streams, bool limited);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Lends a contiguous buffer of `bytes` uint8 elements, 64-byte aligned, with any content, to work
  // that is queued on `lane` from now on.
  at::Tensor take(std::int64_t bytes, Use use, Lane lane);
  // Takes the buffer back.  On an accelerator only `lane` gets it again, for work after that which
  // is now on `lane` and on `others`, streams of the device.
  void give(at::Tensor&& buffer, Use use, Lane lane, const std::vector<c10::StreamId>& others = {});
  // Drops a buffer taken for `lane` without lending it again, because a failed collective may still
  // write it.
  void abandon(at::Tensor&& buffer, Use use, Lane lane);

  // Returns the bytes lent now, and the most ever at once since reset_peak.
  std::int64_t lent_bytes(Use use) const noexcept { return lent_[index(use)]; }
  std::int64_t peak_bytes(Use use) const noexcept { return peak_[index(use)]; }
  void reset_peak() noexcept { peak_ = lent_; }
  // Returns the bytes that wait to be lent again, and the number of buffers.
  std::int64_t free_bytes() const noexcept;
  std::size_t free_count() const noexcept;

 private:
  struct Free {
    c10::Storage storage;
    std::vector<StreamPoint> until;  // the next user comes after them
  };
  using Place = std::list<Free>::iterator;

  // Buffers that one lane takes; on the CPU all buffers.
  struct Pool {
    std::list<Free> free;  // in the order in which they came back
    std::int64_t free_bytes = 0;
    std::int64_t lent_bytes = 0;
    std::int64_t most_lent_bytes = 0;  // ever at once
  };

  static std::size_t index(Use use) noexcept { return static_cast<std::size_t>(use); }
  Pool& pool_of(Lane lane) noexcept {
    return pools_[streams_.on_cpu() ? 0 : static_cast<std::size_t>(lane)];
  }
  bool reuses(Use use) const noexcept { return limited_ || use == Use::kGradients; }
  // Returns the smallest free buffer of at least `bytes` and at most `most`; among equals the one
  // that came back first.
  static Place smallest(Pool& pool, std::int64_t bytes, std::int64_t most);
  Place fitting(Pool& pool, std::int64_t size);
  void drop(Pool& pool, Place place);
  at::Tensor tensor_of(const c10::Storage& storage, std::int64_t bytes) const;
  void note_returned(Pool& pool, Use use, std::int64_t bytes);

  Streams& streams_;
  const bool limited_;
  std::array<Pool, 3> pools_;  // by lane
  std::array<std::int64_t, 2> lent_{};
  std::array<std::int64_t, 2> peak_{};
};

}  // namespace fsdp::internal
