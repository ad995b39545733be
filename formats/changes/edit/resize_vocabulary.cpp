// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/resize_vocabulary.h"

#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/edit/table_state.h"
#include "formats/changes/edit/vocabulary_tables.h"
#include "formats/state/content/content.h"
#include "formats/state/content/loose_states.h"

namespace fsdp::formats {
namespace {

class VocabularyResizer {
 public:
  VocabularyResizer(std::shared_ptr<const Checkpoint> source, const Value& content,
                    const VocabularyResize& resize)
      : source_(std::move(source)),
        content_(content),
        resize_(resize),
        tables_(std::make_shared<arrays::ComputedTensors>(
            std::vector{std::make_shared<arrays::ArraySource>(source_)})) {}

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
    result_.content = tables_->edited(content_);
    result_.checkpoint = std::move(tables_);
    return std::move(result_);
  }

 private:
  const TensorEntry& tensor(const Leaf& leaf) const {
    return source_->index().tensors[*tensor_number(leaf.value)];
  }
  std::string place(const Leaf& leaf) const {
    return cat(source_->description().path, ": ", quote(leaf.key, 200));
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
    throw Error(ErrorCode::kUnsupported, cat(place(state), ": a state ", arrays::tensor_text(own),
                                             " of a table ", shape_text(table.shape), why));
  }

  // `dimension`: the one that counts tokens; dimensions before it have one element.
  void change(const Leaf& leaf, std::size_t dimension, bool state) {
    const std::size_t number = *tensor_number(leaf.value);
    const TensorEntry& own = source_->index().tensors[number];
    std::vector<std::int64_t> shape = own.shape;
    shape[dimension] = resize_.rows;
    result_.tensors.push_back({leaf.key, own.dtype, own.shape, shape, state});
    const auto [made, fresh] = made_.try_emplace(number);
    if (fresh) {
      checked_mul(checked_numel(shape, place(leaf)), item_bytes(own.dtype), place(leaf));
      const arrays::Array table =
          resized_table(tables_->source_array(number), dimension, resize_.rows,
                        fill_of(leaf, own.shape[dimension], state));
      made->second = tables_->separate(leaf.path, arrays::gathered(table, table.shape));
    }
    tables_->replace(leaf, made->second);
  }

  NewRows fill_of(const Leaf& leaf, std::int64_t old_rows, bool state) const {
    NewRows fill;
    const TensorEntry& own = tensor(leaf);
    if (state || resize_.fill == RowFill::kZeros || resize_.rows <= old_rows) return fill;
    if (resize_.fill == RowFill::kNoise) {
      fill.noise = resize_.noise;
      return fill;
    }
    arrays::ArraySource input(source_);
    try {
      fill.row = mean_row(input.array(*tensor_number(leaf.value)),
                          own.numel() / static_cast<std::uint64_t>(old_rows));
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
  std::shared_ptr<arrays::ComputedTensors> tables_;
  std::map<std::size_t, Value> made_;  // by tensor of the source
  VocabularyResized result_;
};

}  // namespace

VocabularyResized resize_vocabulary(std::shared_ptr<const Checkpoint> source, const Value& content,
                                    const VocabularyResize& resize) {
  return VocabularyResizer(std::move(source), content, resize).run();
}

}  // namespace fsdp::formats
