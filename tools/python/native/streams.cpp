// SPDX-License-Identifier: Apache-2.0
// The streams of the C library for libhdf5, inside this shared object: CMakeLists.txt says why.
#include <cstdio>

extern "C" {
[[gnu::visibility("hidden")]] FILE* fsdp_hdf5_stdout = stdout;
[[gnu::visibility("hidden")]] FILE* fsdp_hdf5_stderr = stderr;
}
