// SPDX-License-Identifier: Apache-2.0
// A folder that Accelerate's save_state or the HF Trainer wrote for an FSDP model: model and
// optimizer separately, in one of three layouts.
// Source: accelerate/utils/fsdp_utils.py of Accelerate 1.15; docs/formats/accelerate.md.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::accelerate {

// Returns whether the folder holds a model: pytorch_model_fsdp_0/, pytorch_model_fsdp.bin or
// pytorch_model_fsdp*_rank0.bin, or the same with other numbers.
bool is_accelerate_folder(const std::filesystem::path& folder);

// Opens the parts as `model` and `optimizer` (`model_1`, `optimizer_1`, ... for further ones), and
// schedulers, scalers and samplers under their names.  Findings name the other files.
// Throws: what the readers of the parts throw.
std::unique_ptr<Checkpoint> open_accelerate(const std::filesystem::path& folder,
                                            const std::set<std::string>& allowed_globals);

}  // namespace fsdp::formats::accelerate
