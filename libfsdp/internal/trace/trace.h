// SPDX-License-Identifier: Apache-2.0
// Records when the engine did what, as spans of time: kept in memory, written as Chrome's trace
// JSON (chrome://tracing, ui.perfetto.dev), and shown to LibTorch's profilers as they happen.  On
// an accelerator a span is when the device did it; profilers see when the host asked for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace fsdp::internal {

// Tells when a device begins and ends work, which the host learns only afterwards.
class DeviceClock {
 public:
  using Clock = std::chrono::steady_clock;
  // A point in the work of a stream.
  using Mark = std::shared_ptr<const c10::Event>;

  // Waits for the work on the current stream, to set the device's clock by the host's.
  // Requires: an accelerator.
  explicit DeviceClock(c10::Device device);

  // Marks the current stream.
  Mark mark() const;
  // Returns the host's time at which the stream came to the mark.  If it has not come there: waits
  // if `waits`, else returns nullopt.
  std::optional<Clock::time_point> time_of(const Mark& mark, bool waits);

 private:
  const c10::Device device_;
  // The mark that times count from.  They are float32 milliseconds, so a long trace moves it on.
  Mark anchor_;
  Clock::time_point anchor_time_;
};

// Each lane is one row of the picture.
enum class TraceLane : std::uint8_t {
  kCompute,  // forward, backward, the optimizer
  kUnshard,  // all-gathers
  kReduce,   // reductions of gradients
  kCopy,     // between buffers, and between host and device
};

// Thread-safe.
class Trace {
 public:
  using Clock = DeviceClock::Clock;

  // An end of a span.
  struct Moment {
    Moment() = default;
    Moment(Clock::time_point when) : host(when) {}  // NOLINT(google-explicit-constructor)

    Clock::time_point host;
    DeviceClock::Mark on_device;  // null on the CPU, and while a graph is captured
  };

  // `rank` is the process of the picture.  Keeps at most the last `max_spans` spans.  `epoch` is
  // the time of day at the clock's `begin`, so that several ranks' files can be laid side by side.
  explicit Trace(int rank, std::size_t max_spans = std::size_t{1} << 18,
                 Clock::time_point begin = Clock::now(),
                 std::chrono::system_clock::time_point epoch = std::chrono::system_clock::now());

  // Times what the accelerator does, on its current stream; without it, a trace times the host.
  // While `is_capturing` returns true nothing is recorded: the work runs later, or often.
  void time_device(c10::Device device, std::function<bool()> is_capturing);

  // Returns the host's time and, on an accelerator, a mark of the current stream.  Without a trace:
  // the host's time, for a trace that begins meanwhile.
  static Moment now(const Trace* trace);
  // `name`: "unshard blocks.1".  Spans of a lane may overlap: it gets as many rows as they need.
  void add(TraceLane lane, std::string_view name, Moment start, Moment end);
  // Ends the span of kCompute that is open, and opens one of this name; empty: none.  Call it in
  // one thread at a time.
  void compute(std::string name);

  // Returns how many spans are kept, and how many made room for later ones.
  std::size_t size() const;
  std::uint64_t dropped() const;

  // Waits for the device's queued work, and writes one JSON object to `out`; spans added while it
  // is written may be missing.
  void write(std::ostream& out) const;
  // Throws: c10::Error if the file cannot be written.
  void write(const std::filesystem::path& path) const;

 private:
  struct Span {
    TraceLane lane = TraceLane::kCompute;
    const std::string* name = nullptr;  // one of names_
    std::chrono::nanoseconds start{};   // since begin_
    std::chrono::nanoseconds end{};
  };

  // A span that the device has not ended, as far as the host knows.
  struct Coming {
    Span span;
    Moment start;
    Moment end;
  };

  void keep(Span span) const;
  // Moves spans that are over from coming_ to spans_, in their order.
  void arrive(bool waits) const;

  const int rank_;
  const std::size_t max_spans_;
  const Clock::time_point begin_;
  const std::chrono::nanoseconds epoch_;

  mutable std::mutex mutex_;
  mutable std::optional<DeviceClock> device_;
  std::function<bool()> is_capturing_;
  mutable std::deque<Coming> coming_;
  mutable std::deque<Span> spans_;
  mutable std::uint64_t dropped_ = 0;
  // Steps repeat the same names, so each is kept once.  Nodes do not move.
  std::unordered_set<std::string> names_;
  std::string computing_;  // the name of the open span; empty: none is open
  Moment computing_since_;
};

// Records the span of its own lifetime, in the current thread and stream.  Without a trace and a
// profiler, it costs one check of each.
class TraceSpan {
 public:
  // Named "<what> <unit>", or "<what>" if the unit has no name; profilers see it with the prefix
  // "fsdp: ".
  TraceSpan(Trace* trace, TraceLane lane, std::string_view what, std::string_view unit = {});
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  const TraceLane lane_;
  std::string name_;  // profilers keep a view of it
  Trace::Moment start_;
  at::RecordFunction range_;
};

}  // namespace fsdp::internal
