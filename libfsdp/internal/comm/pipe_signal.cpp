// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/pipe_signal.h"

#include <ctime>

namespace fsdp::internal {
namespace {

sigset_t pipe_signal() noexcept {
  sigset_t result;
  sigemptyset(&result);
  sigaddset(&result, SIGPIPE);
  return result;
}

}  // namespace

PipeSignalBlocked::PipeSignalBlocked() noexcept {
  const sigset_t pipe = pipe_signal();
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

PipeSignalBlocked::~PipeSignalBlocked() {
  if (sigismember(&before_, SIGPIPE) != 0) return;
  const sigset_t pipe = pipe_signal();
  const timespec at_once{};
  while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace fsdp::internal
