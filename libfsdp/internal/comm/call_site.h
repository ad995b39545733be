// SPDX-License-Identifier: Apache-2.0
// The places that order the work of streams.  In builds with FSDP_LEAVE_OUT_CALLS one of them can
// be left out at run time, so that it shows whether a test notices (tests/left_out/run.py); in
// other builds nothing of it is compiled.
#pragma once

#ifdef FSDP_LEAVE_OUT_CALLS
#include <source_location>
#endif

namespace fsdp::internal {

#ifdef FSDP_LEAVE_OUT_CALLS

using CallSite = std::source_location;

// Returns whether the environment's FSDP_LEAVE_OUT names the place: "gather.cpp:118".  Adds it to
// the file that FSDP_LIST_CALLS names, with `what` is called there.
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
