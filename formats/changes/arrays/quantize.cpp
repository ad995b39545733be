// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/elementwise.h"

namespace fsdp::formats::arrays {
namespace {

constexpr float kLargest = 448;                      // of float8_e4m3fn
constexpr std::uint32_t kInfinityBits = 0x7F800000;  // of float32, without a sign
// Neighbouring blocks whose factors are computed together: a whole row of blocks in most matrices.
constexpr std::uint64_t kFactors = 1024;
// Groups of such blocks that are kept: as many as threads may work on.
constexpr std::size_t kGroups = 16;
// Loops of this fixed length become vector instructions.
constexpr std::size_t kVector = 16;

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

FSDP_WIDE_VECTORS void multiply_and_cut(float* numbers, std::size_t count, float factor) {
  const auto each = [=](std::size_t i) {
    const float product = numbers[i] * factor;
    const float above = product < -kLargest ? -kLargest : product;
    numbers[i] = above > kLargest ? kLargest : above;
  };
  std::size_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    for (std::size_t l = 0; l < kVector; ++l) each(i + l);
  }
  for (; i < count; ++i) each(i);
}

// See Note [how a block is quantized].
float factor_of(std::uint32_t most_bits) {
  float most = 0;
  std::memcpy(&most, &most_bits, sizeof most);
  const float factor = most == 0 ? 1 : (1 / most) * kLargest;
  return std::isfinite(factor) ? factor : 1;
}

// The elements of an array as float32, and the factors of its blocks.  Thread-safe.
class BlockFactors {
 public:
  // Factors of neighbouring blocks, from block `first` on.
  struct Group {
    std::uint64_t first = 0;
    std::vector<float> factors;
  };

  // `reader`: of the array.
  BlockFactors(const Array& array, const BlockGrid& grid, std::unique_ptr<ArrayReader> reader)
      : array_(array), grid_(grid), reader_(std::move(reader)) {}

  const BlockGrid& grid() const { return grid_; }
  const ArrayReader& reader() const { return *reader_; }

  // Returns the group of a block.  Several threads may wait for the same group.
  std::shared_ptr<const Group> group_of(std::uint64_t block) const {
    const std::uint64_t in_row = block % grid_.scale_columns();
    const std::uint64_t first = block - in_row % kFactors;
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
        std::min(kFactors, grid_.scale_columns() - first % grid_.scale_columns());
    const std::uint64_t column = first % grid_.scale_columns() * grid_.block_columns;
    const std::uint64_t columns = count > (grid_.columns - column) / grid_.block_columns
                                      ? grid_.columns - column
                                      : count * grid_.block_columns;
    std::vector<std::uint32_t> most(count);
    const std::uint64_t begin = (matrix * grid_.rows + row) * grid_.columns + column;
    if (columns == grid_.columns) {
      scan(begin, rows * columns, first, most);
    } else {
      for (std::uint64_t r = 0; r < rows; ++r)
        scan(begin + r * grid_.columns, columns, first, most);
    }
    auto group = std::make_shared<Group>();
    group->first = first;
    for (const std::uint32_t bits : most) group->factors.push_back(factor_of(bits));
    return group;
  }

  // Updates `most`, the largest magnitudes of the blocks from `first_block` on, by elements from
  // `first` on.
  void scan(std::uint64_t first, std::uint64_t count, std::uint64_t first_block,
            std::vector<std::uint32_t>& most) const {
    const Scratch floats;
    for_each_run(grid_, first, count, kComputedNumel, [&](const GridRun& run) {
      const auto numbers = floats.first(run.numel() * sizeof(float));
      reader_->read_as(DType::kFloat32, first, numbers);
      const auto* const bits = reinterpret_cast<const std::uint32_t*>(numbers.data());
      for_each_block(grid_, run, [&](std::uint64_t at, std::uint64_t size, std::uint64_t block) {
        const std::uint32_t here = largest(bits + at, size);
        if (here >= kInfinityBits) throw not_finite(first + at, {bits + at, size});
        most[block - first_block] = std::max(most[block - first_block], here);
      });
      first += run.numel();
    });
  }

  Error not_finite(std::uint64_t first, std::span<const std::uint32_t> bits) const {
    std::size_t at = 0;
    while ((bits[at] & 0x7FFFFFFF) < kInfinityBits) ++at;
    const bool nan = (bits[at] & 0x7FFFFFFF) > kInfinityBits;
    return {ErrorCode::kUnsupported,
            cat(element_text(array_, first + at), " is ", nan ? "NaN" : "infinite in float32",
                ", but quantize takes only finite numbers")};
  }

  Array array_;
  BlockGrid grid_;
  std::unique_ptr<ArrayReader> reader_;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<Held>> held_;
};

// The numbers or the scales of a quantized array.
class QuantizedSource : public ComputedSource {
 public:
  QuantizedSource(DType dtype, std::uint64_t numel, const Array& array, const BlockGrid& grid)
      : ComputedSource(dtype, numel), factors_(array, grid, opened(array)) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    dtype() == DType::kFloat8E4M3FN ? numbers(first, out) : scales(first, out);
  }

 private:
  void numbers(std::uint64_t first, std::span<std::byte> out) const {
    const Scratch floats;
    std::shared_ptr<const BlockFactors::Group> group;
    for_each_run(factors_.grid(), first, out.size(), kComputedNumel, [&](const GridRun& run) {
      const auto bytes = floats.first(run.numel() * sizeof(float));
      factors_.reader().read_as(DType::kFloat32, first, bytes);
      auto* const numbers = reinterpret_cast<float*>(bytes.data());
      for_each_block(factors_.grid(), run,
                     [&](std::uint64_t at, std::uint64_t count, std::uint64_t block) {
                       if (group == nullptr || block < group->first ||
                           block - group->first >= group->factors.size())
                         group = factors_.group_of(block);
                       multiply_and_cut(numbers + at, count, group->factors[block - group->first]);
                     });
      cast(DType::kFloat32, bytes, DType::kFloat8E4M3FN, out.first(run.numel()));
      out = out.subspan(run.numel());
      first += run.numel();
    });
  }

  void scales(std::uint64_t block, std::span<std::byte> out) const {
    while (!out.empty()) {
      const auto group = factors_.group_of(block);
      for (; block - group->first < group->factors.size() && !out.empty(); ++block) {
        const float scale = 1 / group->factors[block - group->first];
        std::memcpy(out.data(), &scale, sizeof scale);
        out = out.subspan(sizeof scale);
      }
    }
  }

  BlockFactors factors_;
};

Array quantized_array(DType dtype, const std::vector<std::int64_t>& shape, const Array& array,
                      const BlockGrid& grid) {
  return computed_array(dtype, shape, [=, numel = volume({shape, shape})] {
    return std::make_shared<QuantizedSource>(dtype, numel, array, grid);
  });
}

}  // namespace

QuantizedArrays quantized_arrays(const Array& array, const BlockGrid& grid,
                                 const std::vector<std::int64_t>& scale_shape) {
  // An empty array has nothing to compute scales from: they are 1.
  Array scales = array.parts.empty() ? constant_array(DType::kFloat32, scale_shape, 1)
                                     : quantized_array(DType::kFloat32, scale_shape, array, grid);
  return {quantized_array(DType::kFloat8E4M3FN, array.shape, array, grid), std::move(scales)};
}

}  // namespace fsdp::formats::arrays
