// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt: from the process to cli::run and back.
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "formats/remote/remote_stores.h"
#include "tools/cli.h"
#include "tools/process.h"

int main(int argc, char** argv) {
  fsdp::cli::prepare_process();
  int status = 0;
  try {
    fsdp::formats::register_remote_stores();
    status = fsdp::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
  } catch (const std::bad_alloc&) {
    status = fsdp::cli::report_no_memory();
  }
  return fsdp::cli::finish_process(status);
}
