// SPDX-License-Identifier: Apache-2.0
// Marks the calls that order the work of streams.  Builds with FSDP_LEAVE_OUT_CALLS can leave one
// of them out at run time, to show whether a test notices (tests/left_out/run.py).  Other builds
// compile nothing of this.
#pragma once

#ifdef FSDP_LEAVE_OUT_CALLS
#include <source_location>
#endif

namespace fsdp::internal {

#ifdef FSDP_LEAVE_OUT_CALLS

using CallSite = std::source_location;

// Returns whether the environment's FSDP_LEAVE_OUT names the place: "gather.cpp:118".  Adds the
// place and the name of the call, `what`, to the file that FSDP_LIST_CALLS names.
bool is_left_out(const char* what, const CallSite& site);

#else

struct CallSite {
  static constexpr CallSite current() noexcept { return {}; }
};

constexpr bool is_left_out(const char*, CallSite) noexcept {
  return false;
}

#endif

}  // namespace fsdp::internal
