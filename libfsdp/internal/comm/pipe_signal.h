// SPDX-License-Identifier: Apache-2.0
// SIGPIPE, which ends a program that writes to a rank that has ended.
#pragma once

#include <signal.h>

namespace fsdp {

// While it lives, the calling thread does not take SIGPIPE, and no thread that is started meanwhile
// ever does: their writes fail with EPIPE, an error that names the rank.  Gloo and the store's
// server write to sockets from threads of their own without MSG_NOSIGNAL; Python ignores the
// signal, a C++ program does not, and whether the process shall is not for a library to say.
class PipeSignalBlocked {
 public:
  PipeSignalBlocked() noexcept;
  // A signal that came meanwhile is gone.
  ~PipeSignalBlocked();
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace fsdp
