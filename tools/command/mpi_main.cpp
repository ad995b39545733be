// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt-mpi: fsdp-ckpt, with its data divided among the ranks of an MPI job.
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "formats/bytes/remote/remote_stores.h"
#include "tools/command/cli.h"
#include "tools/command/mpi_team.h"
#include "tools/command/process.h"

namespace {

// Time for launchers to pass on the output; they drop what ranks printed just before the job ends.
constexpr std::chrono::milliseconds kPassingOn{200};

// Returns the seconds to wait for other ranks at a step, for tests and for schedulers that do not
// notice a hanging rank.
std::optional<std::chrono::seconds> patience() {
  const char* const text = std::getenv("FSDP_CKPT_RANK_TIMEOUT");
  const long seconds = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  if (seconds <= 0) return std::nullopt;
  return std::chrono::seconds(seconds);
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::cli::prepare_process();
  // Only one rank reports, and none has a number yet.
  fsdp::cli::speak_when_stopped(false);
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_SERIALIZED) {
    std::cerr << "fsdp-ckpt: error[UNSUPPORTED]: this MPI does not support threads\n";
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int status = 0;
  bool broken = false;
  {
    fsdp::cli::MpiTeam team(patience());
    fsdp::cli::speak_when_stopped(team.leads());
    // Launchers pass output on, so a terminal here may be a file there: these streams are not
    // terminals.
    std::ostream out(std::cout.rdbuf());
    std::ostream err(std::cerr.rdbuf());
    try {
      fsdp::formats::register_remote_stores();
      status = fsdp::cli::run(std::vector<std::string>(argv + 1, argv + argc), out, err, team,
                              team.threads());
    } catch (const std::bad_alloc&) {
      status = fsdp::cli::report_no_memory();
      broken = true;
    }
    fsdp::cli::speak_when_stopped(false);
    if (!out) std::cout.setstate(std::ios::failbit);
    status = fsdp::cli::finish_process(status);
    broken = broken || team.broken();
    if (broken) {
      std::this_thread::sleep_for(kPassingOn);
      MPI_Abort(MPI_COMM_WORLD, status);
    }
  }
  MPI_Finalize();
  return status;
}
