// SPDX-License-Identifier: Apache-2.0
// Builds with FSDP_LEAVE_OUT_CALLS can leave out a call that orders the work of streams, or ignore
// an option, at run time, to show whether a test notices: see tests/left_out.  Other builds compile
// nothing of this.
#pragma once

namespace fsdp::internal {

#ifdef FSDP_LEAVE_OUT_CALLS

// Returns whether the present call of the function `name` is to do nothing.
bool is_left_out(const char* name);
// Resets the option that is to be ignored to its default, if it is one of these.
template <typename Options>
void leave_out_option(Options& options);

#else

constexpr bool is_left_out(const char* /*name*/) noexcept {
  return false;
}
template <typename Options>
void leave_out_option(Options& /*options*/) {}

#endif

template <typename Options>
Options with_option_left_out(Options options) {
  leave_out_option(options);
  return options;
}

}  // namespace fsdp::internal
