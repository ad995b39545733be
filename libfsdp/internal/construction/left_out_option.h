// SPDX-License-Identifier: Apache-2.0
// In builds with FSDP_LEAVE_OUT_CALLS the environment's FSDP_IGNORE_OPTION names an option that the
// library ignores ("SummonOptions::recurse"), so that it shows whether a test notices
// (tests/left_out/options.py); in other builds nothing of it is compiled.
#pragma once

#include "libfsdp/fully_shard.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/options.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/strategy.h"

namespace fsdp::internal {

// Each gives the named option its default, if it has it.
#ifdef FSDP_LEAVE_OUT_CALLS

void leave_out_option(FsdpOptions& options);
void leave_out_option(FullyShardOptions& options);
void leave_out_option(SummonOptions& options);
void leave_out_option(StateDictSettings& settings);
void leave_out_option(StrategyOptions& options);

#else

template <typename Options>
void leave_out_option(Options&) {}

#endif

}  // namespace fsdp::internal
