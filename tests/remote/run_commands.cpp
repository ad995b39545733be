// SPDX-License-Identifier: Apache-2.0
// Runs many command lines of fsdp-ckpt one after another in one process.
//
//   remote_run_commands COMMANDS RESULTS
//
// Both files are as tests/support/command_list.h says.
#include <fstream>
#include <sstream>
#include <string>

#include "formats/bytes/remote/remote_stores.h"
#include "tests/support/command_list.h"
#include "tools/command/cli.h"
#include "tools/command/process.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  fsdp::cli::prepare_process();
  fsdp::formats::register_remote_stores();
  std::ifstream in(argv[1]);
  std::ofstream to(argv[2]);
  for (std::string line; std::getline(in, line);) {
    std::ostringstream out;
    std::ostringstream err;
    const int status = fsdp::cli::run(fsdp::test::words_of(line), out, err);
    fsdp::test::write_result(to, status, out.str(), err.str());
  }
  return to.flush() ? 0 : 2;
}
