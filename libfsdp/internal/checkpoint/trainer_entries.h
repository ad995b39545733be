// SPDX-License-Identifier: Apache-2.0
// The entries of checkpoints that trainers have besides model and optimizers.
#pragma once

#include <optional>
#include <string_view>

#include "libfsdp/grad_scaler.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Adds missing entries that Lightning requires to a checkpoint's rest: "epoch" and "global_step"
// (0), "loops" (a Trainer that has ended this epoch after global_step batches of one step each),
// "callbacks" and "lr_schedulers" (none), and "pytorch-lightning_version".
// Source: lightning/pytorch/trainer/connectors/checkpoint_connector.py and loops/progress.py of
// Lightning 2.6.
void add_lightning_meta(StateDict& rest);

// Returns torch.amp.GradScaler.state_dict() of Python.
StateDict scaler_dict(const GradScalerState& state);
// Returns nullopt if `dict` is not a scaler's state: Python's is empty if scaling is not enabled.
std::optional<GradScalerState> scaler_state(const StateDict& dict);

// Returns whether trainers use this key for a scaler's state: Lightning the class of its plugin,
// others "scaler" and the like.
bool is_name_of_scaler(std::string_view key);

}  // namespace fsdp::internal
