// SPDX-License-Identifier: Apache-2.0
#include "tools/command/launcher.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

// A process that starts the tasks of a job: the beginning of its name (Debian has mpirun.openmpi),
// and the variable in which it passes the number of tasks.
struct Starter {
  std::string_view process;
  std::string_view launcher;
  const char* variable;
};

constexpr std::array kStarters = {
    Starter{"mpirun", "mpirun", "OMPI_COMM_WORLD_SIZE"},
    Starter{"mpiexec", "mpiexec", "OMPI_COMM_WORLD_SIZE"},
    Starter{"orterun", "mpirun", "OMPI_COMM_WORLD_SIZE"},
    Starter{"orted", "mpirun", "OMPI_COMM_WORLD_SIZE"},
    Starter{"prterun", "mpirun", "OMPI_COMM_WORLD_SIZE"},
    Starter{"prted", "mpirun", "OMPI_COMM_WORLD_SIZE"},
    Starter{"hydra_pmi_proxy", "mpirun", "PMI_SIZE"},
    // A batch script, which Slurm starts once, lacks this variable; SLURM_NTASKS is set there, too.
    Starter{"slurmstepd", "srun", "SLURM_STEP_NUM_TASKS"},
};

std::string parent_name() {
  std::ifstream file(formats::cat("/proc/", ::getppid(), "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

std::optional<Launch> launched_with_others() {
  for (const Starter& starter : kStarters) {
    const char* const tasks = std::getenv(starter.variable);
    if (tasks == nullptr || !parent_name().starts_with(starter.process)) continue;
    const long count = std::strtol(tasks, nullptr, 10);
    if (count > 1) return Launch{std::string(starter.launcher), count};
  }
  return std::nullopt;
}

}  // namespace fsdp::cli
