// SPDX-License-Identifier: Apache-2.0
// One build runs on every x86-64; where the machine has AVX2, glibc picks the copy of a function
// that uses it when it loads the program.
#pragma once

// Put before a function that gets such a copy.  Sanitizers run before glibc can pick one.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FSDP_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define FSDP_WIDE_VECTORS
#endif

// Put before what such a function calls in its loops, so that each copy has its own.
#define FSDP_INTO_CALLER inline __attribute__((always_inline))
