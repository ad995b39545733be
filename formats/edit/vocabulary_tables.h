// SPDX-License-Identifier: Apache-2.0
// Finds the tensors of a model that have a row for every token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/content/state_tree.h"
#include "formats/model/select.h"

namespace fsdp::formats {

struct VocabularyTables {
  std::int64_t rows = 0;           // of each
  std::vector<Leaf> tables;        // in the order of the content
  std::vector<std::string> alike;  // tensors of the model with a dimension of as many, no tables
};

// `chosen`: globs for the keys of the tables.  If there are none, tables are the weights of modules
// named embed_tokens, tok_embeddings, wte, word_embeddings or embed_in, and the weights and biases
// of lm_head, output, output_layer and embed_out, outside numbered layers.
// `in_optimizer`: tells keys that belong to states of optimizers, which hold no tables.
// Throws: kNotFound if there is no embedding, or a glob matches nothing, naming the nearest key;
// kMismatch naming two tables of different numbers of rows; kUnsupported for tensors that are no
// floating numbers, have scales beside them, or have no rows.
VocabularyTables vocabulary_tables(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves,
                                   const std::vector<Glob>& chosen,
                                   const std::function<bool(const Leaf&)>& in_optimizer);

}  // namespace fsdp::formats
