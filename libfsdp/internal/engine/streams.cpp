// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/streams.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/left_out.h"

namespace fsdp::internal {

Streams::Streams(c10::Device device) : device_(device) {
  if (on_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  for (const Lane lane : {Lane::kUnshard, Lane::kReduce})
    streams_[static_cast<std::size_t>(lane)] =
        guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/true).id();
  follow_caller();
}

void Streams::follow_caller() {
  if (on_cpu() || is_left_out("follow_caller")) return;
  const c10::StreamId current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id();
  TORCH_INTERNAL_ASSERT(current != id(Lane::kUnshard) && current != id(Lane::kReduce));
  streams_[static_cast<std::size_t>(Lane::kCompute)] = current;
}

bool Streams::follows_caller() const {
  return on_cpu() ||
         c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id() == id(Lane::kCompute);
}

c10::OptionalStreamGuard Streams::enter(Lane lane) {
  return on_cpu() || is_left_out("enter") ? c10::OptionalStreamGuard()
                                          : c10::OptionalStreamGuard(stream(lane));
}

void Streams::order(Lane earlier, Lane later) {
  if (!on_cpu() && !is_left_out("order")) pass(mark(id(earlier)), later);
}

void Streams::used_on(const at::Tensor& tensor, c10::StreamId stream_id) const {
  if (!on_cpu() && tensor.defined() && !is_left_out("used_on"))
    tensor.record_stream(stream(stream_id));
}

StreamPoint Streams::mark(c10::StreamId stream_id) {
  if (spare_events_.empty()) spare_events_.emplace_back(device_.type());
  StreamPoint point{stream_id, ++numbers_[stream_id], std::move(spare_events_.back())};
  spare_events_.pop_back();
  point.event.record(stream(stream_id));
  return point;
}

void Streams::pass(StreamPoint&& point, Lane later) {
  if (is_left_out("pass")) return forget(std::move(point));
  std::int64_t& passed = passed_[{id(later), point.stream}];
  if (point.stream != id(later) && point.number > passed) point.event.block(stream(later));
  passed = std::max(passed, point.number);
  forget(std::move(point));
}

}  // namespace fsdp::internal
