// SPDX-License-Identifier: Apache-2.0
// Chains of calls, which say where in the project's code an operator or a wait came from.  A chain
// is kept as addresses, and is turned into files and lines (by addr2line) only when it is shown.
#pragma once

#include <string>

namespace fsdp::test::sim {

// Returns a number for the present chain of calls; equal chains have equal numbers.  Thread-safe.
int call_chain();

// Returns "copy_out (libfsdp/internal/engine/gather.cpp:190) < finish (...) < ...", innermost
// first.  Omits LibTorch, except optimizers and the start of a backward, and the simulated device
// itself.  Thread-safe.
std::string chain_text(int chain);

}  // namespace fsdp::test::sim
