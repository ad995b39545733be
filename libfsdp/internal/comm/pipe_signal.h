// SPDX-License-Identifier: Apache-2.0
// Blocks SIGPIPE, which ends a program that writes to a rank that has ended.
#pragma once

#include <signal.h>

namespace fsdp::internal {

// While it lives, SIGPIPE is blocked in the calling thread, and for good in every thread started
// meanwhile: their writes fail with EPIPE, an error that names the rank.  Gloo and the store's
// server write to sockets from their own threads without MSG_NOSIGNAL.  Python ignores the signal,
// a C++ program does not, and a library must not decide that for the whole process.
class PipeSignalBlocked {
 public:
  PipeSignalBlocked() noexcept;
  // Drops a signal that came meanwhile.
  ~PipeSignalBlocked();
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace fsdp::internal
