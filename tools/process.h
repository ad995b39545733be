// SPDX-License-Identifier: Apache-2.0
// Duties of a command-line process: signals, closed streams, a reader that went away.
#pragma once

#include <functional>

namespace fsdp::cli {

// Stores SIGINT, SIGTERM and SIGHUP as a request to stop (formats/bytes/base/interrupt.h), except
// those that the parent ignores; if no loop has noticed within most of a second, removes
// temporaries and ends this process; makes writing to a closed pipe an error instead of a signal;
// fills closed descriptors 0 to 2, so that no file of ours becomes standard output; raises the
// limit on open files as far as this user is allowed.
void prepare_process();

// Returns what `run` returns.  Where the limit on stacks is lower than libraries need (ulimit -s),
// it runs on a stack of its own, and so do the threads that it starts.
int run_with_stack(const std::function<int()>& run);

// Sets whether this process reports that it was asked to stop if no loop has noticed; at first it
// does.  If not, because another one does or all has been said, it also ends later.
void speak_when_stopped(bool speaks) noexcept;

// The exit status of a run that a signal asked to stop: 128 + its number, as in a shell.
int interrupted_status() noexcept;

// Reports that memory ran out, and whether an output is in place; allocates none itself.  Returns
// the exit status.
int report_no_memory() noexcept;

// Flushes standard output.  Returns `status`, or 141 if the reader of the pipe went away, or 2 if
// the output could not be written; then names on standard error the output that is in place.
int finish_process(int status);

}  // namespace fsdp::cli
