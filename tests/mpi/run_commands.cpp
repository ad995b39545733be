// SPDX-License-Identifier: Apache-2.0
// Runs many command lines of fsdp-ckpt one after another in one MPI job, or without MPI's launcher
// in one process: to start a job takes longer than most commands on small checkpoints.
//
//   mpi_run_commands COMMANDS RESULTS
//
// Both files are as tests/support/command_list.h says; RESULTS gets what the leader answers.
#include <mpi.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/command_list.h"
#include "tools/command/cli.h"
#include "tools/command/mpi_team.h"

namespace {

int run_all(const char* commands, const char* results) {
  std::ifstream in(commands);
  std::ofstream to;
  for (std::string line; std::getline(in, line);) {
    std::ostringstream out;
    std::ostringstream err;
    fsdp::cli::MpiTeam team({});
    const int status = fsdp::cli::run(fsdp::test::words_of(line), out, err, team);
    if (!team.leads()) continue;
    if (!to.is_open()) to.open(results);
    fsdp::test::write_result(to, status, out.str(), err.str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  if (argc != 3 ||
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return 2;
  const int status = run_all(argv[1], argv[2]);
  MPI_Finalize();
  return status;
}
