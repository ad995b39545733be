// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/resize_vocabulary.h"

#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/replaced_tensors.h"
#include "formats/changes/edit/resized_table.h"
#include "formats/changes/edit/table_state.h"
#include "formats/changes/edit/vocabulary_tables.h"
#include "formats/state/content/content.h"
#include "formats/state/content/loose_states.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kResizeKeyText = 200;
// Size of the buffer for comparing checksums of storages that were read only in part.
constexpr std::size_t kResizeCheckBytes = std::size_t{1} << 20U;

// What is read while the output is written.
struct TableInput {
  std::shared_ptr<const Checkpoint> source;
  StorageChecks checks{true};

  std::unique_ptr<InputReader> reader(std::size_t number) {
    return std::make_unique<InputReader>(InputTensor{source.get(), number}, checks);
  }
  void finish() {
    std::vector<std::byte> buffer(kResizeCheckBytes);
    checks.finish(buffer, [] { return interrupted(); });
  }
};

class VocabularyResizer {
 public:
  VocabularyResizer(std::shared_ptr<const Checkpoint> source, const Value& content,
                    const VocabularyResize& resize)
      : source_(std::move(source)),
        content_(content),
        resize_(resize),
        input_(std::make_shared<TableInput>()),
        replaced_(source_) {
    input_->source = source_;
  }

  VocabularyResized run() {
    refuse_loose_states(*source_, content_);
    const std::vector<Leaf> leaves = leaves_of(content_);
    const std::vector<StatePart> optimizers = optimizer_parts(content_);
    const VocabularyTables found =
        vocabulary_tables(*source_, leaves, resize_.tables,
                          [&](const Leaf& leaf) { return lies_in(leaf, optimizers); });
    result_.old_rows = found.rows;
    result_.guessed = resize_.tables.empty();
    result_.alike = found.alike;
    const auto states = states_of(*source_, content_, leaves, found.tables);
    for (const Leaf& table : found.tables) {
      check_noise(table);
      change(table, token_dimension(table.key), false);
    }
    for (const ParameterTensor& state : states) {
      const Leaf& table = found.tables[state.parameter];
      if (is_by_row(state.leaf, tensor(table)))
        change(state.leaf, token_dimension(table.key), true);
    }
    auto made = replaced_.finish(content_, source_->description().path,
                                 [held = input_] { held->finish(); });
    result_.checkpoint = std::move(made.checkpoint);
    result_.content = std::move(made.content);
    return std::move(result_);
  }

 private:
  const TensorEntry& tensor(const Leaf& leaf) const {
    return source_->index().tensors[*tensor_number(leaf.value)];
  }
  std::string place(const Leaf& leaf) const {
    return cat(source_->description().path, ": ", quote(leaf.key, kResizeKeyText));
  }

  void check_noise(const Leaf& table) const {
    if (resize_.fill != RowFill::kNoise) return;
    constexpr double kFarthest = 6;
    const DType dtype = tensor(table).dtype;
    const double wide = kFarthest * resize_.noise.deviation;
    std::vector<std::byte> held(item_bytes(dtype));
    cast(DType::kFloat64, std::as_bytes(std::span(&wide, 1)), dtype, held);
    double back = 0;
    cast(dtype, held, DType::kFloat64, std::as_writable_bytes(std::span(&back, 1)));
    if (std::isfinite(back)) return;
    throw Error(ErrorCode::kUnsupported,
                cat(place(table), " is ", torch_name(dtype), ", which cannot hold numbers up to ",
                    wide, ", six deviations of the noise"));
  }

  // Returns whether a state has as many rows as its table, so that it is resized.
  bool is_by_row(const Leaf& state, const TensorEntry& table) const {
    const TensorEntry& own = tensor(state);
    if (own.numel() <= 1) return false;
    const std::vector<std::int64_t> rest(table.shape.begin() + 1, table.shape.end());
    const bool factored = own.shape.size() + 1 == table.shape.size();
    const bool whole = own.shape == table.shape;
    const bool rows = factored && own.shape[0] == table.shape[0];
    const bool columns = factored && own.shape == rest;
    if (whole && !is_floating(own.dtype)) refuse_state(state, table, " does not hold numbers");
    if (whole || (rows && !columns)) return true;
    if (columns && !rows) return false;
    refuse_state(
        state, table,
        rows ? " may hold a number for each row or for each column" : " has another shape");
  }

  [[noreturn]] void refuse_state(const Leaf& state, const TensorEntry& table,
                                 const char* why) const {
    const TensorEntry& own = tensor(state);
    throw Error(ErrorCode::kUnsupported,
                cat(place(state), ": a state ", torch_name(own.dtype), " ", shape_text(own.shape),
                    " of a table ", shape_text(table.shape), why));
  }

  // `dimension`: the one that counts tokens; dimensions before it have one element.
  void change(const Leaf& leaf, std::size_t dimension, bool state) {
    const std::size_t number = *tensor_number(leaf.value);
    const TensorEntry& own = source_->index().tensors[number];
    ComputedTensor made;
    made.dtype = own.dtype;
    made.shape = own.shape;
    made.shape[dimension] = resize_.rows;
    result_.tensors.push_back({leaf.key, own.dtype, own.shape, made.shape, state});
    const auto done = positions_.find(number);
    if (done != positions_.end()) {
      replaced_.tie(leaf, done->second);
      return;
    }
    checked_mul(checked_numel(made.shape, place(leaf)), item_bytes(own.dtype), place(leaf));
    const auto old_rows = static_cast<std::uint64_t>(own.shape[dimension]);
    const std::uint64_t columns = own.numel() / old_rows;
    made.open = [held = input_, number, old_rows, columns,
                 rows = static_cast<std::uint64_t>(resize_.rows),
                 fill = fill_of(leaf, old_rows, state)] {
      auto reader = held->reader(number);
      const bool checked = reader->checked();
      return ComputedElements{
          std::make_shared<ResizedTable>(std::move(reader), old_rows, rows, columns, fill),
          checked};
    };
    positions_.emplace(number, replaced_.replace(leaf, std::move(made)));
  }

  NewRows fill_of(const Leaf& leaf, std::uint64_t old_rows, bool state) const {
    NewRows fill;
    const TensorEntry& own = tensor(leaf);
    if (state || resize_.fill == RowFill::kZeros ||
        static_cast<std::uint64_t>(resize_.rows) <= old_rows)
      return fill;
    if (resize_.fill == RowFill::kNoise) {
      fill.noise = resize_.noise;
      return fill;
    }
    TableInput input;
    input.source = source_;
    const auto reader = input.reader(*tensor_number(leaf.value));
    try {
      fill.row = mean_row(*reader, own.numel(), own.numel() / old_rows);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kLimitSize) throw;
      throw error.in(place(leaf));
    }
    input.finish();
    return fill;
  }

  std::shared_ptr<const Checkpoint> source_;
  const Value& content_;
  const VocabularyResize& resize_;
  std::shared_ptr<TableInput> input_;
  ReplacedTensors replaced_;
  std::map<std::size_t, std::size_t> positions_;  // tensor of the source -> position for tie()
  VocabularyResized result_;
};

}  // namespace

VocabularyResized resize_vocabulary(std::shared_ptr<const Checkpoint> source, const Value& content,
                                    const VocabularyResize& resize) {
  return VocabularyResizer(std::move(source), content, resize).run();
}

}  // namespace fsdp::formats
