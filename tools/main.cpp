// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt: from the process to cli::run and back.
#include <iostream>
#include <string>
#include <vector>

#include "tools/cli.h"
#include "tools/process.h"

int main(int argc, char** argv) {
  fsdp::cli::prepare_process();
  const int status =
      fsdp::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
  return fsdp::cli::finish_process(status);
}
