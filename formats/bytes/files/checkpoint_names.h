// SPDX-License-Identifier: Apache-2.0
// Names of files of checkpoints, where the name alone must decide: to find files that lost their
// bytes, to carry files along, and to see that replacing a folder loses nothing else.
#pragma once

#include <string_view>

namespace fsdp::formats {

// Returns whether a file of that name is meant to be a checkpoint of its own, whatever it holds:
// "last.ckpt", "model.safetensors", "pytorch_model.bin".  Other names in ".bin" are not: data sets
// have them too.
bool is_checkpoint_name(std::string_view name);

// Returns whether a file of that name is one that trainers put beside the data of a checkpoint.
bool is_companion_name(std::string_view name);

// Returns whether a file of that name describes a model or a run and holds no state: "config.json",
// "tokenizer.model", "training_args.bin", "latest".
bool is_description_name(std::string_view name);

// Returns whether a file of that name belongs to the folder of a checkpoint, as data, metadata or
// companion, so that replacing the checkpoint may remove it.
bool is_member_name(std::string_view name);

}  // namespace fsdp::formats
