// SPDX-License-Identifier: Apache-2.0
// Finds the configuration and tokenizer that a training run keeps for the model of a checkpoint.
#pragma once

#include <filesystem>

#include "formats/families/hf/companions.h"

namespace fsdp::formats::hf {

// Looks in the folder of the checkpoint (a file's own folder), in its parent, and in the parent of
// that, the run's; in each also in the subfolders "huggingface" (written by verl) and "tokenizer"
// (written by NeMo-RL).  Takes the first config.json that has model_type, architectures or
// tie_word_embeddings, with the companions beside it.  If these have no tokenizer, also takes the
// first tokenizer in the other folders.  Sets `found`; returns empty companions if there is no such
// config.json.  In a store looks only in the folder itself.
// Throws: what open_companions throws, except kJson.
Companions find_companions(const std::filesystem::path& checkpoint);

}  // namespace fsdp::formats::hf
