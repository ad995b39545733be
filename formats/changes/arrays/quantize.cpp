// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/elementwise.h"

namespace fsdp::formats::arrays {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000;  // of float32, without a sign
constexpr float kFloatMax = std::numeric_limits<float>::max();
// Neighbouring blocks whose scales are computed together: a whole row of blocks in most matrices.
constexpr std::uint64_t kBlocks = 1024;
// Groups of such blocks that are kept: as many as threads may work on.
constexpr std::size_t kGroups = 16;
// Loops of this fixed length become vector instructions.
constexpr std::size_t kVector = 16;

// The least and the largest element.
struct Range {
  float least = 0;
  float most = 0;
};

FSDP_WIDE_VECTORS Range range_of(const float* numbers, std::size_t count) {
  float least[kVector];
  float most[kVector];
  std::fill_n(least, kVector, numbers[0]);
  std::fill_n(most, kVector, numbers[0]);
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t l = 0; l < kVector; ++l) {
      const float number = numbers[i + l];
      least[l] = number < least[l] ? number : least[l];
      most[l] = number > most[l] ? number : most[l];
    }
  }
  for (; i < count; ++i) {
    least[0] = std::min(least[0], numbers[i]);
    most[0] = std::max(most[0], numbers[i]);
  }
  return {*std::min_element(least, least + kVector), *std::max_element(most, most + kVector)};
}

// Returns the largest magnitude, as bits.  The bits of magnitudes have the order of the numbers.
FSDP_WIDE_VECTORS std::uint32_t largest(const std::uint32_t* bits, std::size_t count) {
  std::uint32_t most[kVector] = {};
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t l = 0; l < kVector; ++l) {
      const std::uint32_t magnitude = bits[i + l] & 0x7FFFFFFF;
      most[l] = most[l] > magnitude ? most[l] : magnitude;
    }
  }
  for (; i < count; ++i) most[0] = std::max(most[0], bits[i] & 0x7FFFFFFF);
  return *std::max_element(most, most + kVector);
}

Error not_finite(const Array& array, std::uint64_t first, std::span<const std::uint32_t> bits) {
  std::size_t at = 0;
  while ((bits[at] & 0x7FFFFFFF) < kInfinityBits) ++at;
  const bool nan = (bits[at] & 0x7FFFFFFF) > kInfinityBits;
  return {ErrorCode::kUnsupported,
          cat(element_text(array, first + at), " is ", nan ? "NaN" : "infinite in float32",
              ", but quantize takes only finite numbers")};
}

// The elements of an array as float32, and the scales of its blocks.  Thread-safe.
class BlockScales {
 public:
  // Scales of neighbouring blocks, from block `first` on.
  struct Group {
    std::uint64_t first = 0;
    std::vector<BlockScale> scales;
  };

  // `reader`: of the array.
  BlockScales(const Quantization& from, std::unique_ptr<ArrayReader> reader)
      : from_(from), grid_(from.grid), reader_(std::move(reader)) {}

  const BlockGrid& grid() const { return grid_; }
  const Quantizer& quantizer() const { return *from_.quantizer; }
  const ArrayReader& reader() const { return *reader_; }

  // Returns the group of a block.  Several threads may wait for the same group.
  std::shared_ptr<const Group> group_of(std::uint64_t block) const {
    const std::uint64_t in_row = block % grid_.scale_columns();
    const std::uint64_t first = block - in_row % kBlocks;
    const auto held = held_group(first);
    const std::lock_guard lock(held->mutex);
    if (held->group == nullptr) held->group = computed_group(first);
    return held->group;
  }

 private:
  struct Held {
    std::uint64_t first = 0;
    std::mutex mutex;
    std::shared_ptr<const Group> group;
  };

  std::shared_ptr<Held> held_group(std::uint64_t first) const {
    const std::lock_guard lock(mutex_);
    for (const auto& held : held_) {
      if (held->first == first) return held;
    }
    if (held_.size() == kGroups) held_.pop_front();
    held_.push_back(std::make_shared<Held>());
    held_.back()->first = first;
    return held_.back();
  }

  std::shared_ptr<const Group> computed_group(std::uint64_t first) const {
    const std::uint64_t scale_row = first / grid_.scale_columns();
    const std::uint64_t matrix = scale_row / grid_.scale_rows();
    const std::uint64_t row = scale_row % grid_.scale_rows() * grid_.block_rows;
    const std::uint64_t rows = std::min(grid_.block_rows, grid_.rows - row);
    const std::uint64_t count =
        std::min(kBlocks, grid_.scale_columns() - first % grid_.scale_columns());
    const std::uint64_t column = first % grid_.scale_columns() * grid_.block_columns;
    const std::uint64_t columns = count > (grid_.columns - column) / grid_.block_columns
                                      ? grid_.columns - column
                                      : count * grid_.block_columns;
    std::vector<Range> ranges(count, Range{kFloatMax, -kFloatMax});
    const std::uint64_t begin = (matrix * grid_.rows + row) * grid_.columns + column;
    if (columns == grid_.columns) {
      scan(begin, rows * columns, first, ranges);
    } else {
      for (std::uint64_t r = 0; r < rows; ++r)
        scan(begin + r * grid_.columns, columns, first, ranges);
    }
    auto group = std::make_shared<Group>();
    group->first = first;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      try {
        group->scales.push_back(quantizer().scale(ranges[i].least, ranges[i].most));
      } catch (const Error& error) {
        throw error.in(element_text(from_.array, begin + i * grid_.block_columns));
      }
    }
    return group;
  }

  // Updates the ranges of the blocks from `first_block` on by elements from `first` on.
  void scan(std::uint64_t first, std::uint64_t count, std::uint64_t first_block,
            std::vector<Range>& ranges) const {
    const Scratch floats;
    for_each_run(grid_, first, count, kComputedNumel, [&](const GridRun& run) {
      const auto bytes = floats.first(run.numel() * sizeof(float));
      reader_->read_as(DType::kFloat32, first, bytes);
      const auto* const numbers = reinterpret_cast<const float*>(bytes.data());
      const auto* const bits = reinterpret_cast<const std::uint32_t*>(bytes.data());
      if (largest(bits, run.numel()) >= kInfinityBits)
        throw not_finite(from_.array, first, {bits, run.numel()});
      for_each_block(grid_, run, [&](std::uint64_t at, std::uint64_t size, std::uint64_t block) {
        const Range here = range_of(numbers + at, size);
        Range& range = ranges[block - first_block];
        range = {std::min(range.least, here.least), std::max(range.most, here.most)};
      });
      first += run.numel();
    });
  }

  Quantization from_;
  BlockGrid grid_;
  std::unique_ptr<ArrayReader> reader_;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<Held>> held_;
};

class NumbersSource : public ComputedSource {
 public:
  NumbersSource(DType dtype, const Quantization& from)
      : ComputedSource(dtype, numel_of(from.array)), scales_(from, opened(from.array)) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch floats;
    std::shared_ptr<const BlockScales::Group> group;
    for_each_run(scales_.grid(), first, out.size(), kComputedNumel, [&](const GridRun& run) {
      const auto bytes = floats.first(run.numel() * sizeof(float));
      scales_.reader().read_as(DType::kFloat32, first, bytes);
      auto* const numbers = reinterpret_cast<float*>(bytes.data());
      auto* const codes = reinterpret_cast<std::uint8_t*>(out.data());
      for_each_block(
          scales_.grid(), run, [&](std::uint64_t at, std::uint64_t count, std::uint64_t block) {
            if (group == nullptr || block < group->first ||
                block - group->first >= group->scales.size())
              group = scales_.group_of(block);
            scales_.quantizer().encode({numbers + at, count}, group->scales[block - group->first],
                                       {codes + at, count});
          });
      out = out.subspan(run.numel());
      first += run.numel();
    });
  }

 private:
  BlockScales scales_;
};

// The scales, or the zero points plus a number.
class ScalesSource : public ComputedSource {
 public:
  ScalesSource(DType dtype, std::uint64_t numel, const Quantization& from, std::optional<int> plus)
      : ComputedSource(dtype, numel), scales_(from, opened(from.array)), plus_(plus) {}

 protected:
  void compute(std::uint64_t block, std::span<std::byte> out) const override {
    const std::uint64_t item = item_bytes(dtype());
    while (!out.empty()) {
      const auto group = scales_.group_of(block);
      for (; block - group->first < group->scales.size() && !out.empty(); ++block) {
        const BlockScale& scale = group->scales[block - group->first];
        if (is_floating(dtype())) {
          cast(DType::kFloat32, std::as_bytes(std::span(&scale.stored, 1)), dtype(),
               out.first(item));
        } else {
          out[0] = static_cast<std::byte>(plus_ ? static_cast<int>(scale.zero) + *plus_
                                                : static_cast<int>(scale.stored));
        }
        out = out.subspan(item);
      }
    }
  }

 private:
  BlockScales scales_;
  std::optional<int> plus_;  // nothing: the scales
};

Array of_blocks(const Quantization& from, const std::vector<std::int64_t>& shape, DType dtype,
                std::optional<int> plus) {
  return computed_array(dtype, shape, [=, numel = volume({shape, shape})] {
    return std::make_shared<ScalesSource>(dtype, numel, from, plus);
  });
}

}  // namespace

Array quantized_numbers(const Quantization& from, DType dtype) {
  return computed_array(dtype, from.array.shape,
                        [=] { return std::make_shared<NumbersSource>(dtype, from); });
}

Array quantized_scales(const Quantization& from, const std::vector<std::int64_t>& shape,
                       DType dtype) {
  // An empty array has nothing to compute them from.
  if (from.array.parts.empty()) return constant_array(dtype, shape, 1);
  return of_blocks(from, shape, dtype, std::nullopt);
}

Array quantized_zeros(const Quantization& from, const std::vector<std::int64_t>& shape, int plus) {
  return of_blocks(from, shape, DType::kUInt8, plus);
}

float largest_magnitude(const Array& array) {
  const ArrayReader reader(array);
  const Scratch floats;
  std::uint32_t most = 0;
  for (std::uint64_t first = 0; first < numel_of(array);) {
    const std::uint64_t count = std::min<std::uint64_t>(kComputedNumel, numel_of(array) - first);
    const auto bytes = floats.first(count * sizeof(float));
    reader.read_as(DType::kFloat32, first, bytes);
    const auto* const bits = reinterpret_cast<const std::uint32_t*>(bytes.data());
    most = std::max(most, largest(bits, count));
    if (most >= kInfinityBits) throw not_finite(array, first, {bits, count});
    first += count;
  }
  float magnitude = 0;
  std::memcpy(&magnitude, &most, sizeof magnitude);
  return magnitude;
}

}  // namespace fsdp::formats::arrays
