// SPDX-License-Identifier: Apache-2.0
// Finds whether a launcher of parallel jobs started this process as one of several.
#pragma once

#include <optional>
#include <string>

namespace fsdp::cli {

// A launcher, and the number of processes it started, at least 2.
struct Launch {
  std::string launcher;  // "mpirun", "srun"
  long tasks = 0;
};

// Returns the launcher that is this process's parent, if it started several processes.  The
// environment alone does not tell: a program that one task of a job starts inherits it.
std::optional<Launch> launched_with_others();

}  // namespace fsdp::cli
