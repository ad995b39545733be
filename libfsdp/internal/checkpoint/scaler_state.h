// SPDX-License-Identifier: Apache-2.0
// The state of a gradient scaler, as checkpoints hold it: torch.amp.GradScaler.state_dict() of
// Python.
#pragma once

#include <optional>
#include <string_view>

#include "libfsdp/grad_scaler.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

StateDict scaler_dict(const GradScalerState& state);
// Returns nullopt if `dict` is not a scaler's state: Python's is empty if scaling is not enabled.
std::optional<GradScalerState> scaler_state(const StateDict& dict);

// Returns whether trainers use this key for a scaler's state: Lightning the class of its plugin,
// others "scaler" and the like.
bool is_name_of_scaler(std::string_view key);

}  // namespace fsdp::internal
