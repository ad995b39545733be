// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/trace/trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <ostream>
#include <set>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "formats/bytes/base/json.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

using std::chrono::nanoseconds;

constexpr std::string_view kProfilerPrefix = "fsdp: ";
constexpr std::array<std::string_view, 4> kLaneNames{"compute", "unshard", "reduce", "copy"};

// Rows of one lane have neighbouring numbers; a lane that needs more than these shares the last.
constexpr int kRowsPerLane = 16;

// Spans that are queued before the host asks the device about them.
constexpr std::size_t kUnasked = 256;

constexpr std::chrono::seconds kAnchorHolds{1};

std::string json_text(std::string_view text) {
  std::string result;
  formats::append_json_string(result, text);
  return result;
}

// Formats the trace's unit, with nanoseconds as decimals.
std::string microseconds(nanoseconds time) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%lld.%03d", static_cast<long long>(time.count() / 1000),
                static_cast<int>(time.count() % 1000));
  return text.data();
}

// The rows of one lane.  A row shows spans one after another or nested.
class Rows {
 public:
  // Requires: spans come ordered by start; of equal starts, the longest first.
  int row_of(nanoseconds start, nanoseconds end) {
    for (std::size_t row = 0; row < open_.size(); ++row) {
      auto& ends = open_[row];
      while (!ends.empty() && ends.back() <= start) ends.pop_back();
      const bool fits = ends.empty() || end <= ends.back();
      if (fits || row + 1 == kRowsPerLane) {
        ends.push_back(end);
        return static_cast<int>(row);
      }
    }
    open_.push_back({end});
    return static_cast<int>(open_.size()) - 1;
  }

 private:
  std::vector<std::vector<nanoseconds>> open_;  // by row: ends of its open spans
};

}  // namespace

DeviceClock::DeviceClock(c10::Device device) : device_(device), anchor_(mark()) {
  anchor_->synchronize();
  anchor_time_ = Clock::now();
}

DeviceClock::Mark DeviceClock::mark() const {
  auto event =
      std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

std::optional<DeviceClock::Clock::time_point> DeviceClock::time_of(const Mark& mark, bool waits) {
  if (waits) mark->synchronize();
  if (!mark->query()) return std::nullopt;
  const auto since = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::milli>(anchor_->elapsedTime(*mark)));
  const Clock::time_point time = anchor_time_ + since;
  if (since > kAnchorHolds) {
    anchor_ = mark;
    anchor_time_ = time;
  }
  return time;
}

Trace::Trace(int rank, std::size_t max_spans, Clock::time_point begin,
             std::chrono::system_clock::time_point epoch)
    : rank_(rank),
      max_spans_(max_spans),
      begin_(begin),
      epoch_(std::chrono::duration_cast<nanoseconds>(epoch.time_since_epoch())) {
  FSDP_CHECK(max_spans > 0, "trace: expected room for at least one span, found none");
}

void Trace::time_device(c10::Device device, std::function<bool()> is_capturing) {
  const std::lock_guard lock(mutex_);
  device_.emplace(device);
  is_capturing_ = std::move(is_capturing);
}

Trace::Moment Trace::now(const Trace* trace) {
  Moment moment(Clock::now());
  if (trace != nullptr && trace->device_ && !trace->is_capturing_())
    moment.on_device = trace->device_->mark();
  return moment;
}

void Trace::add(TraceLane lane, std::string_view name, Moment start, Moment end) {
  const std::lock_guard lock(mutex_);
  Span span{.lane = lane,
            .name = &*names_.emplace(name).first,
            .start = start.host - begin_,
            .end = std::max(start.host, end.host) - begin_};
  if (!device_) {
    keep(span);
  } else if (!is_capturing_()) {
    if (start.on_device && end.on_device)
      coming_.push_back({.span = span, .start = std::move(start), .end = std::move(end)});
    if (coming_.size() % kUnasked == 0) arrive(/*waits=*/coming_.size() >= max_spans_);
  }
}

void Trace::compute(std::string name) {
  Moment now = Trace::now(this);
  if (!computing_.empty()) add(TraceLane::kCompute, computing_, std::move(computing_since_), now);
  computing_ = std::move(name);
  computing_since_ = std::move(now);
}

void Trace::keep(Span span) const {
  if (spans_.size() == max_spans_) {
    spans_.pop_front();
    ++dropped_;
  }
  spans_.push_back(span);
}

void Trace::arrive(bool waits) const {
  while (!coming_.empty()) {
    Coming& first = coming_.front();
    const auto start = device_->time_of(first.start.on_device, waits);
    const auto end = start ? device_->time_of(first.end.on_device, waits) : std::nullopt;
    if (!end) return;
    first.span.start = *start - begin_;
    first.span.end = *end - begin_;
    keep(first.span);
    coming_.pop_front();
  }
}

std::size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return spans_.size() + coming_.size();
}

std::uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Trace::write(std::ostream& out) const {
  std::vector<Span> spans;
  std::uint64_t dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    arrive(/*waits=*/true);
    spans.assign(spans_.begin(), spans_.end());
    dropped = dropped_;
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span& left, const Span& right) {
    return left.start != right.start ? left.start < right.start : left.end > right.end;
  });

  out << R"({"displayTimeUnit":"ms","otherData":{"dropped_spans":)" << dropped
      << R"(},"traceEvents":[)" << '\n'
      << R"({"ph":"M","name":"process_name","pid":)" << rank_ << R"(,"args":{"name":"rank )"
      << rank_ << "\"}}";
  std::array<Rows, kLaneNames.size()> rows;
  std::set<int> named;
  for (const auto& span : spans) {
    const auto lane = static_cast<std::size_t>(span.lane);
    const int row = rows[lane].row_of(span.start, span.end);
    const int thread = static_cast<int>(lane) * kRowsPerLane + row;
    if (named.insert(thread).second) {
      out << ",\n"
          << R"({"ph":"M","name":"thread_name","pid":)" << rank_ << R"(,"tid":)" << thread
          << R"(,"args":{"name":)" << json_text(kLaneNames[lane]) << "}}";
    }
    out << ",\n"
        << R"({"ph":"X","name":)" << json_text(*span.name) << R"(,"cat":)"
        << json_text(kLaneNames[lane]) << R"(,"pid":)" << rank_ << R"(,"tid":)" << thread
        << R"(,"ts":)" << microseconds(epoch_ + span.start) << R"(,"dur":)"
        << microseconds(span.end - span.start) << '}';
  }
  out << "\n]}\n";
}

void Trace::write(const std::filesystem::path& path) const {
  std::ofstream out(path, std::ios::binary);
  FSDP_CHECK(out, "trace: cannot create ", path.string(),
             ": expected a name in a folder that exists and may be written to");
  write(out);
  out.close();
  FSDP_CHECK(out, "trace: cannot write ", path.string(), ": the disk may be full");
}

TraceSpan::TraceSpan(Trace* trace, TraceLane lane, std::string_view what, std::string_view unit)
    : trace_(trace), lane_(lane), range_(at::RecordScope::USER_SCOPE) {
  if (trace_ == nullptr && !range_.isActive()) return;
  name_.reserve(kProfilerPrefix.size() + what.size() + 1 + unit.size());
  name_.append(kProfilerPrefix).append(what);
  if (!unit.empty()) name_.append(" ").append(unit);
  range_.before(std::string_view(name_));
  start_ = Trace::now(trace_);
}

TraceSpan::~TraceSpan() {
  if (trace_ == nullptr) return;
  const auto name = std::string_view(name_).substr(kProfilerPrefix.size());
  trace_->add(lane_, name, std::move(start_), Trace::now(trace_));
}

}  // namespace fsdp::internal
