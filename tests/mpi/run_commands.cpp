// SPDX-License-Identifier: Apache-2.0
// Runs many command lines of fsdp-ckpt one after another in one MPI job, or without MPI's launcher
// in one process: to start a job takes longer than most commands on small checkpoints.
//
//   mpi_run_commands COMMANDS RESULTS
//
// COMMANDS has a command a line, its words apart by tabs.  RESULTS gets, of the leader, for each:
// "status N", then the lines of standard output with "out " and of standard error with "err " in
// front.
#include <mpi.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/cli.h"
#include "tools/mpi_team.h"

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; std::getline(in, word, '\t');) words.push_back(word);
  return words;
}

void write_lines(std::ostream& out, const char* mark, const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out << mark << ' ' << line << '\n';
}

int run_all(const char* commands, const char* results) {
  std::ifstream in(commands);
  std::ofstream to;
  for (std::string line; std::getline(in, line);) {
    std::ostringstream out;
    std::ostringstream err;
    fsdp::cli::MpiTeam team({});
    const int status = fsdp::cli::run(words_of(line), out, err, team.size() > 1 ? &team : nullptr);
    if (!team.leads()) continue;
    if (!to.is_open()) to.open(results);
    to << "status " << status << '\n';
    write_lines(to, "out", out.str());
    write_lines(to, "err", err.str());
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
