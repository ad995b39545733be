// SPDX-License-Identifier: Apache-2.0
// The queues of work on an accelerator.  On the CPU, work runs where it is called, and all of this
// does nothing.
//
// Written against c10's device-generic streams and events, so it needs no CUDA header: the CUDA
// part of LibTorch implements them if a program links it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace fsdp::internal {

enum class Lane {
  kCompute,  // the caller's: forward, backward, optimizer; see follow_caller()
  kUnshard,  // copies into and out of gathers, overlapping kCompute
  kReduce,   // reductions, overlapping kCompute and kUnshard
};

// A place in the work of a stream: everything that was on it when it was marked.
struct StreamPoint {
  c10::StreamId stream = 0;
  std::int64_t number = 0;  // grows along a stream
  c10::Event event;
};

class Streams {
 public:
  explicit Streams(c10::Device device);

  c10::Device device() const noexcept { return device_; }
  bool on_cpu() const noexcept { return device_.is_cpu(); }

  // Makes the stream that is current now kCompute, also inside of enter().  Call it first whenever
  // the caller's code or autograd calls the library: they may use several streams.
  void follow_caller();
  // Returns whether kCompute is the stream that is current now.  Thread-safe.
  bool follows_caller() const;

  c10::Stream stream(Lane lane) const { return stream(id(lane)); }
  c10::StreamId id(Lane lane) const { return streams_[static_cast<std::size_t>(lane)]; }
  // Returns a guard: operators called while it lives are queued on `lane`.
  c10::OptionalStreamGuard enter(Lane lane);
  // Makes work queued on `later` from now on run after the work that is on `earlier` now.
  void order(Lane earlier, Lane later);
  // Keeps the memory of `tensor`, made on another stream, from reuse until the work that is now on
  // `stream` has run.
  void used_on(const at::Tensor& tensor, c10::StreamId stream) const;

  // Marks where the stream is now.  Requires: not on the CPU.
  StreamPoint mark(c10::StreamId stream);
  // Makes work queued on `later` from now on run after the point.  Needs no event if it does so
  // already: steps end and begin with order(), so no step waits for a point of the step before, a
  // wait that a graph could not capture.
  void pass(StreamPoint&& point, Lane later);
  // Drops the point.
  void forget(StreamPoint&& point) { spare_events_.push_back(std::move(point.event)); }

 private:
  c10::Stream stream(c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, device_, id);
  }

  const c10::Device device_;
  std::array<std::atomic<c10::StreamId>, 3> streams_{};  // by lane
  std::map<c10::StreamId, std::int64_t> numbers_;        // of each stream's last point
  // For a later and an earlier stream: the last point of the earlier one that the later one passed.
  std::map<std::pair<c10::StreamId, c10::StreamId>, std::int64_t> passed_;
  // Making an event costs more than recording one again.
  std::vector<c10::Event> spare_events_;
};

}  // namespace fsdp::internal
