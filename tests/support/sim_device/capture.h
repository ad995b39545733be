// SPDX-License-Identifier: Apache-2.0
// Captures of the simulated device, with the rules of CUDA's stream captures.
//
//   sim::Capture capture(0);        // on the current stream of device 0, not the default one
//   step();
//   sim::Graph graph = capture.end();
//   graph.replay();                 // on any stream, any number of times
//
// Work that is called between the two is recorded, and done by replays alone: at the end the
// device's memory, and pinned memory, is what it was at the beginning.
//
// Streams.  A stream becomes part of a capture when it waits for an event of the capture; before
// the capture ends, the stream that it began on must wait for it.  Reported: the default stream as
// a part; work and allocations on other streams of the device, by whatever thread; waits in a
// capture for events of outside, and outside for events of a capture.  Races are looked for among
// the work of a capture; what its streams did before is compared at replays.
//
// The host.  Reported: every wait for the device, every query of an event or a stream, copies from
// and to memory that is not pinned, allocations of pinned memory.
//
// Memory.  Allocations come from memory of the graph's own.  Freed memory is lent again only in the
// same capture on the same stream, or when the graph is gone.
//
// Random numbers.  Each replay draws the next ones of the device's generator; a capture draws none.
// Other generators are reported.
//
// Unlike CUDA: a device has one capture at a time; collectives of a capture run once, so all ranks
// must capture them at the same time, as they must replay them.
#pragma once

#include <memory>

#include "tests/support/sim_device/graph.h"

namespace fsdp::test::sim {

class Recording;

class Capture {
 public:
  // Throws: c10::Error on the default stream, and while the device captures.
  explicit Capture(int device);
  // Drops the recording if end() was not called.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Requires: the current stream is that of the beginning.
  // Throws: c10::Error if it is not, or if the capture was ended.
  Graph end();

 private:
  // Ends the recording and returns it.
  std::unique_ptr<Recording> stop();

  std::unique_ptr<Recording> recording_;
};

}  // namespace fsdp::test::sim
