// SPDX-License-Identifier: Apache-2.0
// main() of tests that are about simulated devices.
#include "tests/support/run_tests.h"

int main(int argc, char** argv) {
  return fsdp::test::run_tests(argc, argv, /*on_sim=*/true);
}
