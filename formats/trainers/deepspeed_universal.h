// SPDX-License-Identifier: Apache-2.0
// A DeepSpeed checkpoint that its ds_to_universal.py made from ZeRO partitions: a folder for each
// parameter, with whole tensors in it.
// Source: deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py of DeepSpeed 0.19;
// docs/formats/deepspeed.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats::deepspeed {

// Whether the folder holds `zero/<parameter>/fp32.pt`, or `latest_universal` (and no `latest`)
// and the folder it names does.
bool is_universal_folder(const std::filesystem::path& folder);

// The index is that of the ZeRO checkpoint it was made from (deepspeed.h).  A state file that is
// missing leaves a hole; findings name it, and what is not read.
// Throws: kMetaType, kDtype; what read_torch_file throws.
std::unique_ptr<Checkpoint> open_universal(const std::filesystem::path& folder);

}  // namespace fsdp::formats::deepspeed
