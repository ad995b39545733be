// SPDX-License-Identifier: Apache-2.0
// Whether a launcher of parallel jobs started this process as one of several.
#pragma once

#include <optional>
#include <string>

namespace fsdp::cli {

// A launcher, and the number of processes it started: more than one.
struct Launch {
  std::string launcher;  // "mpirun", "srun"
  long tasks = 0;
};

// Returns the launcher that is this process's parent, if it started several.  The environment alone
// does not tell: programs that one task of a job starts inherit it.
std::optional<Launch> launched_with_others();

}  // namespace fsdp::cli
