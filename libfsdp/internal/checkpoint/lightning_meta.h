// SPDX-License-Identifier: Apache-2.0
// The entries that Lightning requires of a checkpoint besides model and optimizers.
// Source: lightning/pytorch/trainer/connectors/checkpoint_connector.py and loops/progress.py of
// Lightning 2.6.
#pragma once

#include "libfsdp/state_value.h"

namespace fsdp::internal {

// Adds missing entries to a checkpoint's rest: "epoch" and "global_step" (0), "loops" (a Trainer
// that has ended this epoch after global_step batches of one step each), "callbacks" and
// "lr_schedulers" (none), and "pytorch-lightning_version".
void add_lightning_meta(StateDict& rest);

}  // namespace fsdp::internal
