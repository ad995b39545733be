// SPDX-License-Identifier: Apache-2.0
// A checkpoint of DeepSpeed's ZeRO stages 1 to 3: flat partitions of fp32 weights and optimizer
// state, one file per rank, seen as the tensors of the model.
// Source: deepspeed/utils/zero_to_fp32.py and runtime/zero of DeepSpeed 0.19;
// docs/formats/deepspeed.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::deepspeed {

// Returns whether the folder is a tag folder, or holds `latest` and the tag folder that it names.
bool is_deepspeed_folder(const std::filesystem::path& folder);

// Opens the checkpoint.  The index has `model.<name>` (fp32 weights; frozen weights and buffers as
// saved), `optimizer.state.<name>.<what>`, `optimizer.param_groups`, and the other values that the
// trainer saved.  A rank without a file leaves holes.  A checkpoint without ZeRO opens as its
// single file. Throws: kMetaType, kUnsupported (tensor parallel, pipelines, experts),
// kShardMissing, kShape, kDtype; what read_torch_file throws.
std::unique_ptr<Checkpoint> open_deepspeed(const std::filesystem::path& folder);

// Adds the files that a trainer saved beside the tag folders of `root` (trainer_files.h), each
// under its name; a finding names files that are not read.
std::unique_ptr<Checkpoint> with_trainer_files(std::unique_ptr<Checkpoint> checkpoint,
                                               const std::filesystem::path& root);

}  // namespace fsdp::formats::deepspeed
