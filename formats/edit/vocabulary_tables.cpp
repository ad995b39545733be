// SPDX-License-Identifier: Apache-2.0
#include "formats/edit/vocabulary_tables.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "formats/base/cast.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/content/content.h"
#include "formats/edit/glob_use.h"

namespace fsdp::formats {
namespace {

constexpr std::array<std::string_view, 5> kEmbeddings = {"embed_tokens", "tok_embeddings", "wte",
                                                         "word_embeddings", "embed_in"};
constexpr std::array<std::string_view, 4> kHeads = {"lm_head", "output", "output_layer",
                                                    "embed_out"};
constexpr std::size_t kTableKeyText = 200;

enum class TableKind { kNone, kEmbedding, kHead };

TableKind kind_named(std::string_view key) {
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
  if (std::any_of(parts.begin(), parts.end(), numbered)) return TableKind::kNone;
  const std::string_view module = parts[parts.size() - 2];
  const bool weight = parts.back() == "weight";
  if (weight && std::count(kEmbeddings.begin(), kEmbeddings.end(), module) != 0)
    return TableKind::kEmbedding;
  const bool head = std::count(kHeads.begin(), kHeads.end(), module) != 0;
  return head && (weight || parts.back() == "bias") ? TableKind::kHead : TableKind::kNone;
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
    const std::int64_t rows = tensor(out_.tables.front()).shape[0];
    for (const Leaf& leaf : out_.tables) {
      if (tensor(leaf).shape[0] == rows) continue;
      const Leaf& first = out_.tables.front();
      throw Error(ErrorCode::kMismatch, cat(place(leaf), " has ", tensor(leaf).shape[0],
                                            " rows, and ", quote(first.key, kTableKeyText), " has ",
                                            rows, "; one number of rows cannot be meant for both"));
    }
    out_.rows = rows;
    note_alike();
    return std::move(out_);
  }

 private:
  const TensorEntry& tensor(const Leaf& leaf) const {
    return checkpoint_.index().tensors[*tensor_number(leaf.value)];
  }
  std::string place(const Leaf& leaf) const {
    return cat(checkpoint_.description().path, ": ", quote(leaf.key, kTableKeyText));
  }

  void guess() {
    bool embedding = false;
    for (const Leaf* leaf : model_) {
      const TableKind kind = kind_named(leaf->key);
      if (kind == TableKind::kNone) continue;
      embedding = embedding || kind == TableKind::kEmbedding;
      out_.tables.push_back(*leaf);
    }
    if (embedding) return;
    throw Error(ErrorCode::kNotFound,
                cat(checkpoint_.description().path,
                    ": no key names an embedding: embed_tokens.weight, tok_embeddings.weight, "
                    "wte.weight, word_embeddings.weight, embed_in.weight"));
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
    const bool scaled = item_bytes(table.dtype) == 1 && (keys_.contains(leaf.key + "_scale") ||
                                                         keys_.contains(leaf.key + "_scale_inv"));
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kUnsupported, cat(place(leaf), " is ", torch_name(table.dtype), " ",
                                               shape_text(table.shape), why));
    };
    if (scaled) refuse(" with scales beside it; resizing needs it in one floating type");
    if (!is_floating(table.dtype)) refuse(", and a table holds floating numbers");
    if (table.shape.empty() || table.numel() == 0) refuse(", and a table has rows");
  }

  void note_alike() {
    std::set<std::string> tables;
    for (const Leaf& leaf : out_.tables) tables.insert(leaf.key);
    for (const Leaf* leaf : model_) {
      const auto& shape = tensor(*leaf).shape;
      if (!tables.contains(leaf->key) &&
          std::find(shape.begin(), shape.end(), out_.rows) != shape.end())
        out_.alike.push_back(leaf->key);
    }
  }

  const Checkpoint& checkpoint_;
  std::set<std::string> keys_;
  std::vector<const Leaf*> model_;  // tensors outside optimizers
  VocabularyTables out_;
};

}  // namespace

VocabularyTables vocabulary_tables(const Checkpoint& checkpoint, const std::vector<Leaf>& leaves,
                                   const std::vector<Glob>& chosen,
                                   const std::function<bool(const Leaf&)>& in_optimizer) {
  return TableSearch(checkpoint, leaves, in_optimizer).run(chosen);
}

}  // namespace fsdp::formats
