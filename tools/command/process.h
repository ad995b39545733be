// SPDX-License-Identifier: Apache-2.0
// Handles signals, closed streams and a closed output pipe of a command-line process.
#pragma once

#include <functional>

namespace fsdp::cli {

// Stores SIGINT, SIGTERM and SIGHUP as a request to stop (formats/bytes/base/interrupt.h), unless
// the parent ignores them.  If no loop notices within most of a second, removes temporaries and
// ends this process.  Makes writing to a closed pipe an error instead of a signal.  Opens closed
// descriptors 0 to 2, so that no file of ours becomes standard output.  Raises the limit on open
// files as far as this user may.
void prepare_process();

// Returns what `run` returns.  If the stack limit (ulimit -s) is lower than libraries need, runs
// `run` on a thread with a larger stack; the threads that `run` starts get such stacks, too.
int run_with_stack(const std::function<int()>& run);

// Sets whether this process reports a request to stop that no loop has noticed; at first it does.
// A process that does not, because another one does or everything is said, also ends later.
void speak_when_stopped(bool speaks) noexcept;

// Returns the exit status of a run that a signal asked to stop: 128 + its number, as in a shell.
int interrupted_status() noexcept;

// Reports that memory ran out, and whether an output is in place; allocates no memory.  Returns the
// exit status.
int report_no_memory() noexcept;

// Flushes standard output.  Returns `status`; 141 if the reader of the pipe is gone; 2 if the
// output could not be written, and then names on standard error the output that is in place.
int finish_process(int status);

}  // namespace fsdp::cli
