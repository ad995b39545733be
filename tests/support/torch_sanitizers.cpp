// SPDX-License-Identifier: Apache-2.0
// AddressSanitizer's options for programs with LibTorch, which keeps memory of its own until the
// process ends.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}
