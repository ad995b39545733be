// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/streams.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace fsdp::internal {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLargePage = std::int64_t{1} << 20;
// Gathers that are in use or wait to be: the current unit's and the next one's.
constexpr std::size_t kMostInFlight = 2;

// Rounds sizes up, so that gathers and reductions of similar units have equal buffers.
std::int64_t size_class(std::int64_t bytes) {
  const std::int64_t step = bytes < kLargePage ? kPage : kLargePage;
  return std::max(step, (bytes + step - 1) / step * step);
}

}  // namespace

Streams::Streams(c10::Device device, bool throttled) : device_(device), throttled_(throttled) {
  if (on_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  for (const Lane lane : {Lane::kUnshard, Lane::kReduce})
    streams_[index(lane)] = guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/true).id();
  follow_caller();
}

void Streams::follow_caller() {
  if (on_cpu()) return;
  const c10::StreamId current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id();
  TORCH_INTERNAL_ASSERT(current != streams_[index(Lane::kUnshard)] &&
                        current != streams_[index(Lane::kReduce)]);
  streams_[index(Lane::kCompute)] = current;
}

bool Streams::follows_caller() const {
  return on_cpu() || c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id() ==
                         streams_[index(Lane::kCompute)];
}

c10::Stream Streams::stream(Lane lane) const {
  return c10::Stream(c10::Stream::UNSAFE, device_, streams_[index(lane)]);
}

c10::OptionalStreamGuard Streams::enter(Lane lane) {
  return on_cpu() ? c10::OptionalStreamGuard() : c10::OptionalStreamGuard(stream(lane));
}

void Streams::order(Lane earlier, Lane later) {
  if (on_cpu()) return;
  mark(earlier).block(stream(later));
}

void Streams::used_on(const at::Tensor& tensor, Lane lane) {
  if (!on_cpu() && tensor.defined()) tensor.record_stream(stream(lane));
}

at::Tensor Streams::take(std::int64_t bytes, Use use) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
  at::Tensor buffer;
  if (on_cpu()) {
    const std::int64_t size = size_class(bytes);
    // A slightly larger buffer is better than a new one.
    const auto found = free_.lower_bound(size);
    if (found != free_.end() && found->first <= size + size / 4) {
      buffer = at::empty({0}, options).set_(std::move(found->second), 0, {bytes}, {1});
      free_.erase(found);
    } else {
      buffer = at::empty({size}, options).narrow(0, 0, bytes);
    }
  } else {
    buffer = at::empty({bytes}, options);
  }
  std::int64_t& lent = lent_[index(use)];
  lent += static_cast<std::int64_t>(buffer.storage().nbytes());
  peak_[index(use)] = std::max(peak_[index(use)], lent);
  return buffer;
}

void Streams::give(at::Tensor&& buffer, Use use) {
  if (!buffer.defined()) return;
  if (on_cpu())
    free_.emplace(static_cast<std::int64_t>(buffer.storage().nbytes()), buffer.storage());
  abandon(std::move(buffer), use);
}

void Streams::abandon(at::Tensor&& buffer, Use use) {
  if (!buffer.defined()) return;
  lent_[index(use)] -= static_cast<std::int64_t>(buffer.storage().nbytes());
  buffer.reset();
}

c10::Event Streams::mark(Lane lane) const {
  c10::Event event(device_.type());
  event.record(stream(lane));
  return event;
}

void Streams::resharded(std::int64_t gather) {
  if (on_cpu() || !throttled_) return;
  // One event does for the units of a bucket: the last one is after the others.
  if (!resharded_.empty() && resharded_.back().gather == gather) resharded_.pop_back();
  resharded_.push_back({gather, mark(Lane::kCompute)});
}

void Streams::throttle(const std::function<void(const c10::Event&)>& wait) {
  while (resharded_.size() >= kMostInFlight) {
    wait(resharded_.front().event);
    resharded_.pop_front();
  }
}

}  // namespace fsdp::internal
