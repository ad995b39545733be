// SPDX-License-Identifier: Apache-2.0
// What Lightning asks of a checkpoint beside model and optimizers.
// Source: lightning/pytorch/trainer/connectors/checkpoint_connector.py and loops/progress.py of
// Lightning 2.6.
#pragma once

#include "libfsdp/state_value.h"

namespace fsdp {

// Adds to a checkpoint's rest what it lacks of "epoch" and "global_step" (0), "loops" (a Trainer
// that has ended that epoch after that many batches of one step each), "callbacks" and
// "lr_schedulers" (none), and "pytorch-lightning_version".
void add_lightning_meta(StateDict& rest);

}  // namespace fsdp
