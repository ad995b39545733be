// SPDX-License-Identifier: Apache-2.0
// A DeepSpeed checkpoint that ds_to_universal.py made from ZeRO partitions: a folder for each
// parameter, with whole tensors in it.
// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of DeepSpeed 0.19;
// docs/formats/deepspeed.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::deepspeed {

// Returns whether the folder holds `zero/<parameter>/fp32.pt`, or `latest_universal` (and no
// `latest`) with the name of such a folder.
bool is_universal_folder(const std::filesystem::path& folder);

// Opens the checkpoint.  The index is that of the original ZeRO checkpoint (deepspeed.h).  A
// missing state file leaves a hole; findings name missing files, and files that are not read.
// Throws: kMetaType, kDtype; what read_torch_file throws.
std::unique_ptr<Checkpoint> open_universal(const std::filesystem::path& folder);

}  // namespace fsdp::formats::deepspeed
