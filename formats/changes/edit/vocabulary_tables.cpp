// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/vocabulary_tables.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/edit/glob_use.h"
#include "formats/state/content/content.h"
#include "formats/state/content/table_names.h"

namespace fsdp::formats {
namespace {

// Embeddings if there is none of those above: of Mamba and CTRL.
constexpr std::array<std::string_view, 2> kOtherEmbeddings = {"embeddings", "w"};
// Output layers only if they have as many rows as the embedding: such names have other uses.
constexpr std::array<std::string_view, 10> kOtherHeads = {
    "decoder",         "predictions",       "proj_out", "output_projection", "lm_loss",
    "vocab_projector", "generator_lm_head", "head",     "out_proj",          "proj"};
// A bias [1, tokens].
constexpr std::string_view kLogitsBias = "final_logits_bias";
// Limit of the tensors that an error names.
constexpr std::size_t kMostDoubtful = 8;

enum class TableKind { kNone, kEmbedding, kOtherEmbedding, kHead, kOtherHead };

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string_view last_part(std::string_view key) {
  return key.substr(key.rfind('.') + 1);
}

// Returns whether the name is that of a tensor that counts something other than tokens.
bool is_of_positions(std::string_view key) {
  constexpr std::array<std::string_view, 4> kWords = {"position", "wpe", "norm", "token_type"};
  return std::ranges::any_of(kWords,
                             [&](std::string_view word) { return key.find(word) != key.npos; });
}

TableKind kind_named(std::string_view key) {
  if (last_part(key) == kLogitsBias) return TableKind::kOtherHead;
  std::vector<std::string_view> parts;
  while (!key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    parts.push_back(key.substr(0, dot));
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  if (parts.size() < 2) return TableKind::kNone;
  const auto numbered = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
  };
  if (std::ranges::any_of(parts, numbered)) return TableKind::kNone;
  const std::string_view module = parts[parts.size() - 2];
  const bool weight = parts.back() == "weight";
  if (weight && is_one_of(kEmbeddingModules, module)) return TableKind::kEmbedding;
  if (weight && is_one_of(kOtherEmbeddings, module)) return TableKind::kOtherEmbedding;
  if (!weight && parts.back() != "bias") return TableKind::kNone;
  if (is_one_of(kHeadModules, module)) return TableKind::kHead;
  return is_one_of(kOtherHeads, module) ? TableKind::kOtherHead : TableKind::kNone;
}

class TableSearch {
 public:
  TableSearch(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves,
              const std::function<bool(const Leaf&)>& in_optimizer)
      : checkpoint_(checkpoint) {
    for (const Leaf& leaf : leaves) {
      keys_.insert(leaf.key);
      if (tensor_number(leaf.value) && !in_optimizer(leaf)) model_.push_back(&leaf);
    }
  }

  VocabularyTables run(const std::vector<Glob>& chosen) {
    if (chosen.empty())
      guess();
    else
      choose(chosen);
    for (const Leaf& leaf : out_.tables) check(leaf);
    const std::int64_t rows = rows_of(out_.tables.front());
    for (const Leaf& leaf : out_.tables) {
      if (rows_of(leaf) == rows) continue;
      const Leaf& first = out_.tables.front();
      throw Error(ErrorCode::kMismatch,
                  cat(place(leaf), " has ", rows_of(leaf), " rows, but ", quote(first.key, 200),
                      " has ", rows, "; tables must have the same number of rows"));
    }
    out_.rows = rows;
    note_alike(chosen.empty());
    return std::move(out_);
  }

 private:
  const TensorEntry& tensor(const Leaf& leaf) const {
    return checkpoint_.index().tensors[*tensor_number(leaf.value)];
  }
  std::string place(const Leaf& leaf) const {
    return cat(checkpoint_.description().path, ": ", quote(leaf.key, 200));
  }

  // Returns the rows that a leaf has for tokens; 0 if it has no such dimension, or if a dimension
  // before it has more than one element.
  std::int64_t rows_of(const Leaf& leaf) const {
    const auto& shape = tensor(leaf).shape;
    const std::size_t dimension = token_dimension(leaf.key);
    if (dimension >= shape.size()) return 0;
    return dimension == 0 || shape[0] == 1 ? shape[dimension] : 0;
  }

  const Leaf* first_of(TableKind kind) const {
    const auto found = std::ranges::find_if(
        model_, [&](const Leaf* leaf) { return kind_named(leaf->key) == kind; });
    return found == model_.end() ? nullptr : *found;
  }

  void guess() {
    const bool usual = first_of(TableKind::kEmbedding) != nullptr;
    const auto embeddings = usual ? TableKind::kEmbedding : TableKind::kOtherEmbedding;
    const Leaf* embedding = first_of(embeddings);
    if (embedding == nullptr) {
      throw Error(
          ErrorCode::kNotFound,
          cat(checkpoint_.description().path,
              ": no key has the name of an embedding: embed_tokens.weight, tok_embeddings.weight, "
              "wte.weight, word_embeddings.weight, embed_in.weight, shared.weight"));
    }
    const std::int64_t rows = rows_of(*embedding);
    for (const Leaf* leaf : model_) {
      const TableKind kind = kind_named(leaf->key);
      if (kind == embeddings || kind == TableKind::kHead ||
          (kind == TableKind::kOtherHead && rows_of(*leaf) == rows))
        out_.tables.push_back(*leaf);
    }
  }

  void choose(const std::vector<Glob>& chosen) {
    GlobUse use(chosen);
    for (const Leaf* leaf : model_) {
      if (use.matches(leaf->key)) out_.tables.push_back(*leaf);
    }
    use.check_all(checkpoint_.description().path, "tensor of a model");
  }

  void check(const Leaf& leaf) const {
    const TensorEntry& table = tensor(leaf);
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kUnsupported,
                  cat(place(leaf), " is ", arrays::tensor_text(table), why));
    };
    if (arrays::has_scales(keys_, leaf.key, table.dtype))
      refuse(" with scales beside it; dequantize it first");
    if (!is_floating(table.dtype)) refuse(", but a table holds floating numbers");
    if (rows_of(leaf) == 0 || table.numel() == 0) refuse(", but a table must have rows");
  }

  // Notes other tensors with a dimension of as many elements as the tables have rows.  Throws
  // kMismatch if one with as many rows may be a table, unless tables were chosen: if it is one, the
  // model would not load.
  void note_alike(bool guessed) {
    std::set<std::string> tables;
    for (const Leaf& leaf : out_.tables) tables.insert(leaf.key);
    std::vector<const Leaf*> doubtful;
    for (const Leaf* leaf : model_) {
      const auto& shape = tensor(*leaf).shape;
      if (tables.contains(leaf->key) || std::ranges::find(shape, out_.rows) == shape.end())
        continue;
      out_.alike.push_back(leaf->key);
      const bool rows = shape[0] == out_.rows || (shape.size() == 2 && shape[0] == 1);
      if (guessed && rows && !is_of_positions(leaf->key)) doubtful.push_back(leaf);
    }
    if (doubtful.empty()) return;
    std::string others;
    for (std::size_t i = 1; i < doubtful.size() && i < kMostDoubtful; ++i)
      others += cat(", ", quote(doubtful[i]->key, 200));
    if (doubtful.size() > kMostDoubtful)
      others += cat(" and ", doubtful.size() - kMostDoubtful, " more");
    const Leaf& first = *doubtful.front();
    throw Error(ErrorCode::kMismatch,
                cat(place(first), " ", shape_text(tensor(first).shape), " has as many rows as ",
                    quote(out_.tables.front().key, 200),
                    ", and its name does not say whether it is a table",
                    others.empty() ? "" : "; so have" + others.substr(1)));
  }

  const Checkpoint& checkpoint_;
  std::set<std::string> keys_;
  std::vector<const Leaf*> model_;  // tensors outside optimizers
  VocabularyTables out_;
};

}  // namespace

std::size_t token_dimension(std::string_view key) {
  return last_part(key) == kLogitsBias ? 1 : 0;
}

VocabularyTables vocabulary_tables(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves,
                                   const std::vector<Glob>& chosen,
                                   const std::function<bool(const Leaf&)>& in_optimizer) {
  return TableSearch(checkpoint, leaves, in_optimizer).run(chosen);
}

}  // namespace fsdp::formats
