// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/capture.h"

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "tests/support/sim_device/call_chain.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

// Returns the chain of the last work of a stream.
int last_chain(const Recording& recording, int stream) {
  for (auto work = recording.work.rbegin(); work != recording.work.rend(); ++work) {
    const Access& access = work->access;
    if (access.stream == stream && access.chain >= 0) return access.chain;
  }
  return call_chain();
}

}  // namespace

Capture::Capture(int device) {
  static int captures = 0;
  const Lock lock;
  const c10::Stream stream = current_stream(device);
  TORCH_CHECK(stream.id() != 0, "a capture cannot begin on the default stream");
  TORCH_CHECK(recording_of(device) == nullptr, "device ", device, " captures already");
  recording_ = std::make_unique<Recording>(++captures, device, place_of(stream));
  enter_capture(recording_->stream, recording_->number, {});
  set_recording(device, recording_.get());
}

std::unique_ptr<Recording> Capture::stop() {
  const Lock lock;
  set_recording(recording_->device, nullptr);
  recording_->restore();
  poison_memory_of_graph(recording_->number);
  return std::exchange(recording_, nullptr);
}

Capture::~Capture() {
  if (!recording_) return;
  const Lock lock;
  leave_capture(recording_->number, recording_->stream);
  give_back_memory_of_graph(stop()->number);
}

Graph Capture::end() {
  const Lock lock;
  TORCH_CHECK(recording_, "the capture was ended before");
  TORCH_CHECK(place_of(current_stream(recording_->device)) == recording_->stream,
              "a capture ends on the stream that it began on");
  for (const int stream : leave_capture(recording_->number, recording_->stream))
    report("in a capture: " + full_stream_name(stream) + " was not joined into " +
               full_stream_name(recording_->stream) + " before the end",
           {{"its last work", last_chain(*recording_, stream)}, {"end", call_chain()}});
  const auto recording = stop();
  return Graph(recording->device, recording->number, std::move(recording->work));
}

}  // namespace fsdp::test::sim
