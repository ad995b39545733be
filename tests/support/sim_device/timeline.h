// SPDX-License-Identifier: Apache-2.0
// The order of work on streams.  Operators run when they are called, whatever stream they are
// called in; what the stream means is kept here, as clocks:
//
//   a kernel            learns what the host knew when it was called, and is one tick of its stream
//   an event            a copy of its stream's clock
//   a wait for it       the later stream, or the host, learns the event's clock
//
// Work is ordered after other work exactly if its stream had learned of it.  So a missing wait is
// found whenever the code that lacks it runs, and not only when timing is unlucky.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tests/support/sim_device/clock.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

// How far a device is behind the host.
enum class Progress {
  // No work is over before the host has waited for it: memory is at its worst.  Who asks about one
  // event again, and queued nothing in between, waits for it.
  kLate,
  kEager,  // all work is over when somebody asks: memory is at its best
  // No work is ever over for who asks, as behind a collective that another rank never joins.
  kStuck,
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
// Returns what the work that is on the stream now was ordered after, and itself.
Clock clock_of(const c10::Stream& stream);
Clock clock_of(int stream);
// What comes on the stream from now on is after what the clock knows.
void wait_on_stream(const c10::Stream& stream, const Clock& clock);
void order(const c10::Stream& earlier, const c10::Stream& later);

// The host waits.  `kind`: the counter that counts it.
void wait_on_host(int device, const Clock& clock, std::int64_t Counters::*kind);
// The host waits for all streams of the device, which no counter counts.
void synchronize(int device);
// The host learns of it without waiting.
void learn(int device, const Clock& clock);
bool host_knows(int device, int stream, std::uint32_t time);

}  // namespace fsdp::test::sim
