// SPDX-License-Identifier: Apache-2.0
// In builds with FSDP_LEAVE_OUT_CALLS the library ignores the option that the environment's
// FSDP_IGNORE_OPTION names ("SummonOptions::recurse"), to show whether a test notices
// (tests/left_out/options.py).  Other builds compile nothing of this.
#pragma once

namespace fsdp {
struct DDPFullyShardedOptions;
struct FsdpOptions;
struct FullyShardOptions;
struct LoadOptions;
struct ProcessGroupOptions;
struct SaveOptions;
struct StateDictSettings;
struct StrategyOptions;
struct SummonOptions;
struct TrainingLoadOptions;
}  // namespace fsdp

namespace fsdp::internal {

// Each resets the named option to its default, if it is one of these options.
#ifdef FSDP_LEAVE_OUT_CALLS

void leave_out_option(FsdpOptions& options);
void leave_out_option(FullyShardOptions& options);
void leave_out_option(SummonOptions& options);
void leave_out_option(StateDictSettings& settings);
void leave_out_option(StrategyOptions& options);
void leave_out_option(DDPFullyShardedOptions& options);
void leave_out_option(SaveOptions& options);
void leave_out_option(LoadOptions& options);
void leave_out_option(TrainingLoadOptions& options);
void leave_out_option(ProcessGroupOptions& options);

#else

template <typename Options>
void leave_out_option(Options&) {}

#endif

template <typename Options>
Options with_option_left_out(Options options) {
  leave_out_option(options);
  return options;
}

}  // namespace fsdp::internal
