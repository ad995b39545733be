// SPDX-License-Identifier: Apache-2.0
// The streams of the C library for libhdf5's archive.  It is compiled for programs, which may have
// variables of the C library; in a shared object the linker's --wrap gives it these.
#include <cstdio>

extern "C" {
extern FILE* __real_stdout;
extern FILE* __real_stderr;
FILE* __wrap_stdout = __real_stdout;
FILE* __wrap_stderr = __real_stderr;
}
