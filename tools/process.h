// SPDX-License-Identifier: Apache-2.0
// What a command-line process owes its surroundings: signals, closed streams, a reader that went
// away.
#pragma once

namespace fsdp::cli {

// Stores SIGINT, SIGTERM and SIGHUP as a wish to stop (formats/base/interrupt.h), leaving those
// alone that the parent ignores; ends this process where nobody has noticed within most of a
// second, temporaries removed; makes writing to a closed pipe an error instead of a signal; fills
// closed descriptors 0 to 2, so that no file of ours becomes standard output; raises the limit on
// open files as far as this user may.
void prepare_process();

// What a run ends with that a signal asked to stop: 128 + its number, as a shell tells it.
int interrupted_status() noexcept;

// Says that there was no memory, and whether an output is in place; takes none itself.  Returns the
// exit status.
int report_no_memory() noexcept;

// Flushes standard output.  Returns `status`, or 141 where the reader of the pipe went away, or 2
// where what was printed could not be written; says on standard error what is in place all the
// same.
int finish_process(int status);

}  // namespace fsdp::cli
