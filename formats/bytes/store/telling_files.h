// SPDX-License-Identifier: Apache-2.0
// Names of files that tell what a folder holds, and of their companions.  A store that cannot list
// is asked for these names.
#pragma once

#include <array>
#include <string_view>

namespace fsdp::formats {

inline constexpr std::array<std::string_view, 12> kTellingFiles = {
    ".metadata",
    "meta.pt",
    "common.pt",
    "metadata.json",
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "chat_template.jinja",
};
// Files of a published model beside its weights.
inline constexpr std::array<std::string_view, 15> kModelCompanions = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "spiece.model",
    "sentencepiece.bpe.model",
};

}  // namespace fsdp::formats
