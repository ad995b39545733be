// SPDX-License-Identifier: Apache-2.0
// Finds the tensors of a model that have a row for every token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {

struct VocabularyTables {
  std::int64_t rows = 0;           // of each
  std::vector<Leaf> tables;        // in the order of the content
  std::vector<std::string> alike;  // other tensors of the model with a dimension of that size
};

// Returns the dimension of a table that counts tokens: 1 for a final_logits_bias, else 0.
std::size_t token_dimension(std::string_view key);

// Finds the tables.  `chosen`: globs for their keys.  If there are none, tables are the weights of
// modules named embed_tokens, tok_embeddings, wte, word_embeddings, embed_in, shared,
// word_embedding, tokens_embed or input_embedding (embeddings or w, if there is none of these), and
// the weights and biases of lm_head, output, output_layer and embed_out, outside numbered layers;
// and, if they have as many rows, final_logits_bias and those of decoder, predictions, proj_out,
// output_projection, lm_loss, vocab_projector, generator_lm_head, head, out_proj and proj.
// `in_optimizer`: tells keys that belong to states of optimizers, which hold no tables.
// Throws: kNotFound if there is no embedding, or a glob matches nothing, naming the nearest key;
// kMismatch naming two tables of different numbers of rows, or, without `chosen`, other tensors
// with as many rows (positions, norms and token types aside); kUnsupported for tensors that are not
// floating, have scales beside them, or have no rows.
VocabularyTables vocabulary_tables(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves,
                                   const std::vector<Glob>& chosen,
                                   const std::function<bool(const Leaf&)>& in_optimizer);

}  // namespace fsdp::formats
