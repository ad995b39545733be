// SPDX-License-Identifier: Apache-2.0
// The work of main() in programs of tests.
#pragma once

namespace fsdp::test {

// Runs the tests of a program, on simulated devices or on the CPU (see test_device.h).  On
// simulated devices, a finding of their checker fails the test in which it was made.
int run_tests(int argc, char** argv, bool on_sim);

}  // namespace fsdp::test
