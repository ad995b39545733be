// SPDX-License-Identifier: Apache-2.0
// Writing to a socket that may be closed, without SIGPIPE.
#pragma once

#include <signal.h>
#include <time.h>

namespace fsdp::formats {

// Blocks SIGPIPE in this thread while libcurl writes to sockets that may be closed, and drops
// signals that came.  libcurl's own handler would be the whole process's.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;
  ~NoPipeSignal() {
    if (::sigismember(&before_, SIGPIPE) == 0) {
      const timespec no_time{};
      while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace fsdp::formats
