// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/element_stages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/real.h"

namespace fsdp::formats {
namespace {

// Elements that are read at a time.
constexpr std::uint64_t kStageNumel = 64U << 10U;

void check_elements(std::uint64_t offset, std::size_t bytes, std::uint64_t item,
                    std::uint64_t size) {
  if (offset % item == 0 && bytes % item == 0 && offset <= size && bytes <= size - offset) return;
  throw Error(ErrorCode::kTruncated,
              cat("bytes ", offset, "+", bytes, " of ", size, " are not whole elements"));
}

// Calls `take` with the elements from `first` on, `count` in all, as numbers of type Real.
template <typename Real, typename Take>
void for_blocks(const ElementReader& reader, std::uint64_t first, std::uint64_t count,
                const Take& take) {
  const std::uint64_t most = std::min(count, kStageNumel);
  std::vector<std::byte> elements(most * item_bytes(reader.dtype()));
  std::vector<std::byte> scratch(elements.size());
  std::vector<Real> numbers(most);
  while (count != 0) {
    const std::uint64_t part = std::min(count, most);
    const auto bytes = std::span(elements).first(part * item_bytes(reader.dtype()));
    reader.read(first, bytes, scratch);
    const auto out = std::span(numbers).first(part);
    cast(reader.dtype(), bytes, kTypeOf<Real>, std::as_writable_bytes(out));
    take(first, out);
    first += part;
    count -= part;
  }
}

class SourceElements : public ElementReader {
 public:
  SourceElements(std::shared_ptr<const ByteSource> source, DType dtype)
      : source_(std::move(source)), dtype_(dtype) {}
  DType dtype() const override { return dtype_; }
  void read(std::uint64_t first, std::span<std::byte> out,
            std::span<std::byte> /*scratch*/) const override {
    source_->read_at(first * item_bytes(dtype_), out);
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  DType dtype_;
};

class LaterElements : public ElementReader {
 public:
  LaterElements(std::shared_ptr<const ElementReader> reader, std::uint64_t first)
      : reader_(std::move(reader)), first_(first) {}
  DType dtype() const override { return reader_->dtype(); }
  void read(std::uint64_t first, std::span<std::byte> out,
            std::span<std::byte> scratch) const override {
    reader_->read(first_ + first, out, scratch);
  }

 private:
  std::shared_ptr<const ElementReader> reader_;
  std::uint64_t first_;
};

class CastSource : public ByteSource {
 public:
  CastSource(std::shared_ptr<const ElementReader> reader, DType to, std::uint64_t numel)
      : reader_(std::move(reader)), to_(to), size_(numel * item_bytes(to)) {}
  std::uint64_t size() const override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::uint64_t item = item_bytes(to_);
    check_elements(offset, out.size(), item, size_);
    const std::uint64_t from = item_bytes(reader_->dtype());
    const std::uint64_t most = std::min<std::uint64_t>(kStageNumel, out.size() / item);
    std::vector<std::byte> elements(most * from);
    std::vector<std::byte> scratch(elements.size());
    for (std::uint64_t first = offset / item; !out.empty();) {
      const std::uint64_t count = std::min<std::uint64_t>(most, out.size() / item);
      const auto part = std::span(elements).first(count * from);
      reader_->read(first, part, scratch);
      cast(reader_->dtype(), part, to_, out.first(count * item));
      out = out.subspan(count * item);
      first += count;
    }
  }

 private:
  std::shared_ptr<const ElementReader> reader_;
  DType to_;
  std::uint64_t size_;
};

class JoinedSource : public ByteSource {
 public:
  explicit JoinedSource(std::vector<std::shared_ptr<const ByteSource>> parts)
      : parts_(std::move(parts)), part_bytes_(parts_.front()->size()) {}
  std::uint64_t size() const override { return part_bytes_ * parts_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const std::uint64_t at = offset % part_bytes_;
      const std::uint64_t count = std::min<std::uint64_t>(out.size(), part_bytes_ - at);
      parts_.at(offset / part_bytes_)->read_at(at, out.first(count));
      out = out.subspan(count);
      offset += count;
    }
  }

 private:
  std::vector<std::shared_ptr<const ByteSource>> parts_;
  std::uint64_t part_bytes_;
};

template <typename Real>
class ScaledSource : public ByteSource {
 public:
  ScaledSource(std::shared_ptr<const ElementReader> matrix, std::span<const double> magnitudes,
               bool by_column, std::uint64_t columns, std::uint64_t numel)
      : matrix_(std::move(matrix)), by_column_(by_column), columns_(columns), numel_(numel) {
    std::vector<double> squares(magnitudes.size());
    for_blocks<Real>(*matrix_, 0, numel, [&](std::uint64_t first, std::span<const Real> numbers) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto number = static_cast<double>(numbers[i]);
        squares[line_of(first + i)] += number * number;
      }
    });
    for (std::size_t i = 0; i < squares.size(); ++i) {
      factors_.push_back(static_cast<Real>(magnitudes[i]) /
                         static_cast<Real>(std::sqrt(squares[i])));
    }
  }
  std::uint64_t size() const override { return numel_ * sizeof(Real); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    check_elements(offset, out.size(), sizeof(Real), size());
    for_blocks<Real>(*matrix_, offset / sizeof(Real), out.size() / sizeof(Real),
                     [&](std::uint64_t first, std::span<Real> numbers) {
                       for (std::size_t i = 0; i < numbers.size(); ++i)
                         numbers[i] = settled(factors_[line_of(first + i)] * numbers[i]);
                       std::memcpy(out.data(), numbers.data(), numbers.size_bytes());
                       out = out.subspan(numbers.size_bytes());
                     });
  }

 private:
  std::uint64_t line_of(std::uint64_t element) const {
    return by_column_ ? element % columns_ : element / columns_;
  }

  std::shared_ptr<const ElementReader> matrix_;
  bool by_column_;
  std::uint64_t columns_;
  std::uint64_t numel_;
  std::vector<Real> factors_;
};

class RowsSource : public ByteSource {
 public:
  RowsSource(std::shared_ptr<const ElementReader> matrix, std::span<const std::uint64_t> places,
             std::vector<std::byte> rows, std::uint64_t columns, DType to, std::uint64_t numel)
      : others_(std::move(matrix), to, numel),
        rows_(std::move(rows)),
        row_bytes_(columns * item_bytes(to)) {
    for (std::size_t i = 0; i < places.size(); ++i) places_[places[i]] = i;
  }
  std::uint64_t size() const override { return others_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    others_.read_at(offset, out);
    const std::uint64_t end = offset + out.size();
    for (auto at = places_.lower_bound(offset / row_bytes_); at != places_.end(); ++at) {
      const std::uint64_t begin = at->first * row_bytes_;
      if (begin >= end) break;
      const std::uint64_t from = std::max(begin, offset);
      const std::uint64_t to = std::min(begin + row_bytes_, end);
      std::memcpy(out.data() + (from - offset),
                  rows_.data() + at->second * row_bytes_ + (from - begin), to - from);
    }
  }

 private:
  CastSource others_;
  std::vector<std::byte> rows_;
  std::uint64_t row_bytes_;
  std::map<std::uint64_t, std::size_t> places_;  // row of the matrix -> row of rows_
};

}  // namespace

std::unique_ptr<ElementReader> elements_of(std::shared_ptr<const ByteSource> source, DType dtype) {
  return std::make_unique<SourceElements>(std::move(source), dtype);
}

std::unique_ptr<ElementReader> elements_from(std::shared_ptr<const ElementReader> reader,
                                             std::uint64_t first) {
  return std::make_unique<LaterElements>(std::move(reader), first);
}

std::shared_ptr<const ByteSource> cast_source(std::shared_ptr<const ElementReader> reader, DType to,
                                              std::uint64_t numel) {
  return std::make_shared<CastSource>(std::move(reader), to, numel);
}

std::shared_ptr<const ByteSource> joined_source(
    std::vector<std::shared_ptr<const ByteSource>> parts) {
  return std::make_shared<JoinedSource>(std::move(parts));
}

std::shared_ptr<const ByteSource> scaled_source(std::shared_ptr<const ElementReader> matrix,
                                                std::span<const double> magnitudes, bool by_column,
                                                std::uint64_t columns, std::uint64_t numel) {
  if (matrix->dtype() == DType::kFloat64) {
    return std::make_shared<ScaledSource<double>>(std::move(matrix), magnitudes, by_column, columns,
                                                  numel);
  }
  return std::make_shared<ScaledSource<float>>(std::move(matrix), magnitudes, by_column, columns,
                                               numel);
}

std::shared_ptr<const ByteSource> with_rows(std::shared_ptr<const ElementReader> matrix,
                                            std::span<const std::uint64_t> places,
                                            std::vector<std::byte> rows, std::uint64_t columns,
                                            DType to, std::uint64_t numel) {
  return std::make_shared<RowsSource>(std::move(matrix), places, std::move(rows), columns, to,
                                      numel);
}

}  // namespace fsdp::formats
