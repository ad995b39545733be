// SPDX-License-Identifier: Apache-2.0
// Finds the configuration and tokenizer that a training run keeps for the model of a checkpoint.
#pragma once

#include <filesystem>

#include "formats/families/hf/companions.h"

namespace fsdp::formats::hf {

// Looks in the folder of the checkpoint (a file's own folder), the one around it, and the one
// around that, the run's; in each also in its folders "huggingface", which verl writes, and
// "tokenizer", which NeMo-RL does.  Of the first config.json that has a model_type, a class or
// tie_word_embeddings the companions beside it are taken; if there is no tokenizer among them, also
// the first tokenizer of these folders.  Companions are `found`; nothing is in them if there is no
// such config.json. In a store only the folder itself is looked at. Throws: what open_companions
// throws for the folder that it takes.
Companions find_companions(const std::filesystem::path& checkpoint);

}  // namespace fsdp::formats::hf
