// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints in the layouts of trainers: Lightning's folder or file, Accelerate's two
// folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "formats/state/content/output.h"

namespace fsdp::formats {

// Returns whether `format` is "lightning", "lightning-ckpt" or "accelerate".
bool is_framework_format(std::string_view format);

struct FrameworkOptions {
  OutputOptions output;
  std::int64_t world_size = 1;  // ranks of the folders
  bool drop_values = false;     // accelerate: leave out values without a place there
};

// Plans an output.  "lightning": one folder, DCP beside meta.pt.  "lightning-ckpt": one file with
// optimizer states by id.  "accelerate": a folder with pytorch_model_fsdp_0/ and optimizer_0/,
// further models and optimizers under their numbers, and scheduler.bin.  Optimizer states are put
// into the form that the trainer loads.
// Lifetime: the source outlives the output.
// Throws: kUsage (another format), kUnsupported naming a value without a place; what rekey_content,
// trainer_state, plan_dcp_output and plan_torch_output throw.
std::unique_ptr<Output> plan_framework_output(const std::string& format, const Checkpoint& source,
                                              const Value& content,
                                              const std::filesystem::path& destination,
                                              const FrameworkOptions& options);

}  // namespace fsdp::formats
