// SPDX-License-Identifier: Apache-2.0
// main() of the tests of libfsdp: on the CPU, or on simulated devices if FSDP_TEST_DEVICE is "sim".
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  const char* const value = std::getenv("FSDP_TEST_DEVICE");
  const std::string_view device = value == nullptr ? "cpu" : value;
  if (device != "cpu" && device != "sim") {
    std::cerr << "FSDP_TEST_DEVICE: expected cpu or sim, but got '" << device << "'\n";
    return 2;
  }
  return fsdp::test::run_tests(argc, argv, device == "sim");
}
