// SPDX-License-Identifier: Apache-2.0
// Changes the number of tokens of a model's embedding and output layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/changes/edit/row_fill.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {

enum class RowFill { kMean, kZeros, kNoise };

struct VocabularyResize {
  std::int64_t rows = 0;     // of every table; positive
  std::vector<Glob> tables;  // keys; found by their names if there are none
  RowFill fill = RowFill::kMean;
  Noise noise;
};

struct ResizedTensor {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> was;
  std::vector<std::int64_t> now;
  bool state = false;  // of an optimizer
};

struct VocabularyResized {
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;  // refers to `checkpoint`
  std::int64_t old_rows = 0;
  bool guessed = false;
  std::vector<ResizedTensor> tensors;  // tables, then states
  std::vector<std::string> alike;      // see VocabularyTables
};

// Keeps the first rows of each table and fills new ones.  Tables that are tied or equal get equal
// rows: noise depends only on the seed and the place in the table.  Optimizer states that have a
// table's shape, or a number for each of its rows, get rows of zeros.
// Throws: the errors of vocabulary_tables, mean_row and states_of, with the key; kUnsupported for a
// state of another shape, and if the dtype of a table cannot hold the noise.
VocabularyResized resize_vocabulary(std::shared_ptr<const Checkpoint> source, const Value& content,
                                    const VocabularyResize& resize);

}  // namespace fsdp::formats
