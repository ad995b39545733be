// SPDX-License-Identifier: Apache-2.0
// The names that modules with a row for every token have in well-known models.
#pragma once

#include <array>
#include <string_view>

namespace fsdp::formats {

inline constexpr std::array<std::string_view, 9> kEmbeddingModules = {
    "embed_tokens", "tok_embeddings", "wte",          "word_embeddings", "embed_in",
    "shared",       "word_embedding", "tokens_embed", "input_embedding"};
inline constexpr std::array<std::string_view, 4> kHeadModules = {"lm_head", "output",
                                                                 "output_layer", "embed_out"};

}  // namespace fsdp::formats
