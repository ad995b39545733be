// SPDX-License-Identifier: Apache-2.0
// Includes all of the library that a training program needs.  Leaves out <torch/torch.h>, which
// makes a compile half as long again: include <torch/nn/modules/linear.h> and what else the program
// uses.
#pragma once

#include "libfsdp/activation_checkpoint.h"  // IWYU pragma: export
#include "libfsdp/checkpoint.h"             // IWYU pragma: export
#include "libfsdp/device_mesh.h"            // IWYU pragma: export
#include "libfsdp/fully_shard.h"            // IWYU pragma: export
#include "libfsdp/fully_sharded.h"          // IWYU pragma: export
#include "libfsdp/gathered.h"               // IWYU pragma: export
#include "libfsdp/grad_scaler.h"            // IWYU pragma: export
#include "libfsdp/meta_device.h"            // IWYU pragma: export
#include "libfsdp/optim/adamw.h"            // IWYU pragma: export
#include "libfsdp/optim_state_dict.h"       // IWYU pragma: export
#include "libfsdp/param_groups.h"           // IWYU pragma: export
#include "libfsdp/process_group.h"          // IWYU pragma: export
#include "libfsdp/reduce.h"                 // IWYU pragma: export
