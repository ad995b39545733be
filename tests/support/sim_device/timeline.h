// SPDX-License-Identifier: Apache-2.0
// The order of work on streams.  Operators run when they are called, whatever stream they are
// called in; what the stream means is kept here, as clocks:
//
//   a kernel            learns what the host knew when it was called, and is one tick of its stream
//   an event            a copy of its stream's clock
//   a wait for it       the later stream, or the host, learns the event's clock
//
// A stream in a capture (capture.h) has a clock of the capture's own: nothing that is recorded is
// ordered after what happens meanwhile.
//
// Work is ordered after other work exactly if its stream had learned of it.  So a missing wait is
// found whenever the code that lacks it runs, and not only when timing is unlucky.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tests/support/sim_device/clock.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

// How far a device is behind the host.
enum class Progress {
  // No work is over before the host has waited for it: memory is at its worst.  A caller that asks
  // about an event again, and queued nothing in between, waits for the event.
  kLate,
  kEager,  // all work is over when somebody asks: memory is at its best
  // A query never finds work over, as behind a collective that another rank never joins.
  kStuck,
};

// A point in the work of a stream: an event.
struct Mark {
  int stream = 0;
  Clock clock;
  int capture = 0;  // that the stream was part of
};

// All functions are thread-safe; the current device and streams are those of the thread.

void set_progress(Progress progress);
Progress progress();

// Returns the stream's place in clocks.
int place_of(const c10::Stream& stream);
// Names a stream in findings and counters.  Streams of several devices may have one name.
void name_stream(const c10::Stream& stream, const std::string& name);
std::string stream_name(int stream);
// Returns "unshard of device 1".
std::string full_stream_name(int stream);
int device_of_stream(int stream);
c10::Stream new_stream(int device, const std::string& name);

int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);
void set_current_stream(const c10::Stream& stream);

// Puts the next work on a stream.  `name` lives forever.
Access begin_kernel(const c10::Stream& stream, const char* name);
// Begins an allocation on the stream, which is not work but has a time.
Access begin_allocation(const c10::Stream& stream);
// Returns the clock of the work that a begun access is ordered after, the access included.
Clock known_to(const Access& access);
// Returns the stream's clock outside of captures: its own work, and what it was ordered after.
Clock clock_of(int stream);
// Returns the point that the stream has come to.
Mark mark_of(const c10::Stream& stream);
// Orders later work on the stream after the mark.  A mark of a capture makes the stream part of
// that capture.
void wait_on_stream(const c10::Stream& stream, const Mark& mark);
void order(const c10::Stream& earlier, const c10::Stream& later);

// Has the host wait for the mark.  `kind`: the counter of such waits.
void wait_on_host(const Mark& mark, std::int64_t Counters::*kind);
// Has the host wait for all streams of the device; no counter counts this.
void synchronize(int device);
// Call when the host asks whether work is over.  Returns true if a capture forbids the question.
bool refuse_question(const Mark& mark);
// Makes the clock known to the host without a wait.
void learn(int device, const Clock& clock);
bool host_knows(int device, int stream, std::uint32_t time);

// Returns the capture that the stream is part of; 0: none.
int capture_of(int stream);
// Makes a stream part of a capture, after what the clock of the capture knows.
void enter_capture(int stream, int capture, const Clock& clock);
// Ends a capture on all streams.  Returns those whose work the stream `into` was not ordered after.
std::vector<int> leave_capture(int capture, int into);

}  // namespace fsdp::test::sim
