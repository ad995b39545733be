// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt: from the process to cli::run and back.
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "formats/bytes/remote/remote_stores.h"
#include "tools/command/cli.h"
#include "tools/command/process.h"

int main(int argc, char** argv) {
  fsdp::cli::prepare_process();
  const int status = fsdp::cli::run_with_stack([&] {
    try {
      fsdp::formats::register_remote_stores();
      return fsdp::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
    } catch (const std::bad_alloc&) {
      return fsdp::cli::report_no_memory();
    }
  });
  return fsdp::cli::finish_process(status);
}
