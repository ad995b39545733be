// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder of the Hugging Face Trainer for an unsharded model: model, optimizer,
// scheduler and random states, each in a file of its own.
// Source: transformers/trainer.py of Transformers 4.57; docs/formats/trainer.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::trainer {

// Returns whether model weights (*.safetensors, pytorch_model.bin, adapter_model.bin) lie beside an
// optimizer.pt or another file of the trainer's (trainer_files.h).
bool is_trainer_folder(const std::filesystem::path& folder);

// Opens the parts as `model`, `optimizer`, `scheduler`, ...  A finding names the other files.
// Throws: what the readers of the parts throw.
std::unique_ptr<Checkpoint> open_trainer_folder(const std::filesystem::path& folder);

}  // namespace fsdp::formats::trainer
