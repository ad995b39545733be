// SPDX-License-Identifier: Apache-2.0
// Runs a function on hostile input in a confined child process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace fsdp::formats {

struct SandboxLimits {
  std::uint64_t memory_bytes = 0;  // address space beyond the memory that this process has mapped
  unsigned cpu_seconds = 0;
  unsigned wall_seconds = 0;
  std::uint64_t output_bytes = 0;  // size of the function's result
};

// Answers the child while it runs: `answer` is called whenever there is something to read at `fd`.
struct SandboxService {
  int fd = -1;
  std::function<void()> answer;
};

// Forks, calls `work` in the child, and returns its result in this process.
//
// The child has two descriptors, `input_fd` and its end of a pipe.  If `input_fd` is the end of a
// connection, `service` has the other end.  The child's address space, processor time and core
// dumps are limited, and it gains no privileges.  Landlock (if the kernel has it) closes the file
// system to the child.  seccomp allows system calls for reading and writing open descriptors and
// for memory; all others fail with EPERM: no open, no exec, no fork, no socket.  The child dies
// with this process and shares no memory with it.
//
// The child is forked, not started as a program: programs that link the library need no helper
// binary on disk and no hidden command line.  `work` must not rely on other threads.
// Throws: the Error that `work` throws, what `answer` throws; kH5ReaderFailed if the child dies,
// exceeds a limit, or cannot be confined; kIo.
std::string run_sandboxed(int input_fd, const SandboxLimits& limits,
                          const std::function<std::string()>& work,
                          const SandboxService* service = nullptr);

}  // namespace fsdp::formats
