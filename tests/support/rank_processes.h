// SPDX-License-Identifier: Apache-2.0
// Starts programs side by side, and gives their output and exit status.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace fsdp::test {

// Returns a port of this machine that is free at the moment.
int free_port();

class Processes {
 public:
  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  // Kills processes that still run.
  ~Processes();

  // Returns the index of the new process, which gets this process's environment without its
  // launcher variables, and `variables`.
  std::size_t start(const std::vector<std::string>& command,
                    const std::map<std::string, std::string>& variables);
  void send(std::size_t process, int signal);
  // Returns what the process has printed so far, to either stream.
  std::string output(std::size_t process) const;
  // Returns when the process has printed the line.  Throws std::runtime_error if it ends before, or
  // takes too long.
  void wait_for_line(std::size_t process, const std::string& line);
  // Waits for the end of the process and returns its exit status, or minus the signal that killed
  // it.  Throws std::runtime_error if this takes too long.
  int wait(std::size_t process);

 private:
  struct Process {
    pid_t pid = -1;
    bool ended = false;
    int status = 0;
  };
  bool ended(Process& process);
  std::filesystem::path log(std::size_t process) const;

  TempDir folder_;
  std::vector<Process> processes_;
};

}  // namespace fsdp::test
