// SPDX-License-Identifier: Apache-2.0
// In builds with FSDP_LEAVE_OUT_CALLS the environment's FSDP_IGNORE_OPTION names an option that the
// library ignores, so that it shows whether a test notices (tests/left_out/options.py); in other
// builds nothing of it is compiled.
#pragma once

#include "libfsdp/options.h"

namespace fsdp::internal {

#ifdef FSDP_LEAVE_OUT_CALLS

// Gives the named option its default.  Throws: c10::Error for a name that is not one.
void leave_out_option(FsdpOptions& options);

#else

inline void leave_out_option(FsdpOptions&) {}

#endif

}  // namespace fsdp::internal
