// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arrays/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "formats/changes/arithmetic/real.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

template <typename Real>
class ScaledSource : public ComputedSource {
 public:
  ScaledSource(const Array& matrix, const Array& magnitudes, bool by_column)
      : ComputedSource(kTypeOf<Real>, numel_of(matrix)),
        matrix_(opened(matrix)),
        by_column_(by_column),
        columns_(numel() / static_cast<std::uint64_t>(matrix.shape[0])) {
    const auto wanted = elements_of(magnitudes, DType::kFloat64);
    std::vector<double> squares(wanted.size() / sizeof(double));
    const Scratch scratch;
    for (std::uint64_t first = 0; first < numel(); first += kComputedNumel) {
      const auto numbers = read(
          first,
          scratch.first(std::min<std::uint64_t>(kComputedNumel, numel() - first) * sizeof(Real)));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto number = static_cast<double>(numbers[i]);
        squares[line_of(first + i)] += number * number;
      }
    }
    for (std::size_t i = 0; i < squares.size(); ++i) {
      double magnitude = 0;
      std::memcpy(&magnitude, wanted.data() + i * sizeof magnitude, sizeof magnitude);
      factors_.push_back(static_cast<Real>(magnitude) / static_cast<Real>(std::sqrt(squares[i])));
    }
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch scratch;
    const auto numbers = read(first, scratch.first(out.size()));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = settled(factors_[line_of(first + i)] * numbers[i]);
    std::memcpy(out.data(), numbers.data(), numbers.size_bytes());
  }

 private:
  std::span<Real> read(std::uint64_t first, std::span<std::byte> out) const {
    matrix_->read_as(dtype(), first, out);
    return {reinterpret_cast<Real*>(out.data()), out.size() / sizeof(Real)};
  }
  std::uint64_t line_of(std::uint64_t element) const {
    return by_column_ ? element % columns_ : element / columns_;
  }

  std::unique_ptr<ArrayReader> matrix_;
  bool by_column_;
  std::uint64_t columns_;
  std::vector<Real> factors_;
};

class RowsSource : public ComputedSource {
 public:
  RowsSource(const Array& matrix, const std::vector<std::uint64_t>& places, const Array& rows,
             DType to)
      : ComputedSource(to, numel_of(matrix)),
        others_(opened(matrix)),
        rows_(elements_of(rows, to)),
        columns_(numel() / static_cast<std::uint64_t>(matrix.shape[0])) {
    for (std::size_t i = 0; i < places.size(); ++i) places_[places[i]] = i;
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    others_->read_as(dtype(), first, out);
    const std::uint64_t item = item_bytes(dtype());
    const std::uint64_t end = first + out.size() / item;
    for (auto at = places_.lower_bound(first / columns_); at != places_.end(); ++at) {
      const std::uint64_t begin = at->first * columns_;
      if (begin >= end) break;
      const std::uint64_t from = std::max(begin, first);
      const std::uint64_t to = std::min(begin + columns_, end);
      std::memcpy(out.data() + (from - first) * item,
                  rows_.data() + (at->second * columns_ + from - begin) * item, (to - from) * item);
    }
  }

 private:
  std::unique_ptr<ArrayReader> others_;
  std::vector<std::byte> rows_;
  std::uint64_t columns_;
  std::map<std::uint64_t, std::size_t> places_;  // row of the matrix -> row of rows_
};

class ChosenSource : public ComputedSource {
 public:
  ChosenSource(const Array& matrix, std::shared_ptr<const std::vector<std::uint32_t>> rows)
      : ComputedSource(matrix.dtype, rows->size() * static_cast<std::uint64_t>(matrix.shape[1])),
        matrix_(opened(matrix)),
        rows_(std::move(rows)),
        columns_(static_cast<std::uint64_t>(matrix.shape[1])) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const std::uint64_t item = item_bytes(dtype());
    while (!out.empty()) {
      const std::uint64_t column = first % columns_;
      const std::uint64_t count = std::min(out.size() / item, columns_ - column);
      matrix_->read((*rows_)[first / columns_] * columns_ + column, out.first(count * item));
      out = out.subspan(count * item);
      first += count;
    }
  }

 private:
  std::unique_ptr<ArrayReader> matrix_;
  std::shared_ptr<const std::vector<std::uint32_t>> rows_;
  std::uint64_t columns_;
};

}  // namespace

Array chosen_rows(const Array& matrix,
                  const std::shared_ptr<const std::vector<std::uint32_t>>& rows) {
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(rows->size()), matrix.shape[1]};
  return computed_array(matrix.dtype, std::move(shape),
                        [=] { return std::make_shared<ChosenSource>(matrix, rows); });
}

Array with_lengths(const Array& matrix, const Array& magnitudes, bool by_column) {
  const auto as = [&]<typename Real>(Real /*type*/) {
    return computed_array(kTypeOf<Real>, matrix.shape, [=] {
      return std::make_shared<ScaledSource<Real>>(matrix, magnitudes, by_column);
    });
  };
  return matrix.dtype == DType::kFloat64 ? as(double()) : as(float());
}

Array with_rows(const Array& matrix, const std::vector<std::uint64_t>& places, const Array& rows,
                DType to) {
  return computed_array(to, matrix.shape,
                        [=] { return std::make_shared<RowsSource>(matrix, places, rows, to); });
}

}  // namespace fsdp::formats::arrays
