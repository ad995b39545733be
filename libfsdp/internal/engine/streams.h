// SPDX-License-Identifier: Apache-2.0
// The queues of work on an accelerator, and the buffers that cross them.  On the CPU, work runs
// where it is called, and this class only lends buffers.
//
// Written against c10's device-generic streams and events, so it needs no CUDA header: the CUDA
// part of LibTorch implements them if a program links it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace fsdp::internal {

enum class Lane {
  kCompute,  // the caller's: forward, backward, optimizer; see follow_caller()
  kUnshard,  // copies into and out of gathers, overlapping kCompute
  kReduce,   // copies into and out of reductions, overlapping kCompute and kUnshard
};

// The purpose of a lent buffer.
enum class Use { kParameters, kGradients };

class Streams {
 public:
  // `throttled`: throttle() waits.
  Streams(c10::Device device, bool throttled);

  c10::Device device() const noexcept { return device_; }
  bool on_cpu() const noexcept { return device_.is_cpu(); }

  // Makes kCompute the stream that is current now, and stays so inside of enter().  Call it first
  // whenever the caller's code or autograd calls the library: they may use several streams.
  void follow_caller();
  // Returns whether kCompute is the stream that is current now.  Thread-safe.
  bool follows_caller() const;

  c10::Stream stream(Lane lane) const;
  // Operators called while the result lives are queued on `lane`.
  c10::OptionalStreamGuard enter(Lane lane);
  // Work queued on `later` from now on runs after the work that is on `earlier` now.
  void order(Lane earlier, Lane later);
  // The memory of `tensor`, made on another lane, is not reused before the work that is on `lane`
  // now has run.
  void used_on(const at::Tensor& tensor, Lane lane);

  // Lends a contiguous buffer of `bytes` uint8 elements, 64-byte aligned, with any content.
  at::Tensor take(std::int64_t bytes, Use use);
  // Takes the buffer back.  On an accelerator the caching allocator keeps it; on the CPU a free
  // list does, because fresh pages cost more than the copies made into them.
  void give(at::Tensor&& buffer, Use use);
  // Drops it without lending it again, because a collective that failed may still write it.
  void abandon(at::Tensor&& buffer, Use use);
  // Returns the bytes lent now, and the most ever at once since reset_peak.
  std::int64_t lent_bytes(Use use) const noexcept { return lent_[index(use)]; }
  std::int64_t peak_bytes(Use use) const noexcept { return peak_[index(use)]; }
  void reset_peak() noexcept { peak_ = lent_; }
  std::size_t free_buffer_count() const noexcept { return free_.size(); }

  // Returns an event after the work that is on `lane` now.
  // Requires: not on the CPU.
  c10::Event mark(Lane lane) const;

  // Call when a unit was resharded; `gather` is the number of the gather that it came with.
  void resharded(std::int64_t gather);
  // Call before a gather: has the CPU wait until the units of all but the last resharded gather are
  // really out of use, so that at most two gathers are in use or wait to be.  `wait` waits for an
  // event.
  void throttle(const std::function<void(const c10::Event&)>& wait);

 private:
  static std::size_t index(Use use) noexcept { return static_cast<std::size_t>(use); }
  static std::size_t index(Lane lane) noexcept { return static_cast<std::size_t>(lane); }

  const c10::Device device_;
  const bool throttled_;
  std::array<std::atomic<c10::StreamId>, 3> streams_{};  // by lane
  struct Resharded {
    std::int64_t gather = 0;
    c10::Event event;
  };
  std::deque<Resharded> resharded_;  // gathers whose units were resharded, and may still be in use
  std::multimap<std::int64_t, c10::Storage> free_;  // by size
  std::array<std::int64_t, 2> lent_{};
  std::array<std::int64_t, 2> peak_{};
};

}  // namespace fsdp::internal
