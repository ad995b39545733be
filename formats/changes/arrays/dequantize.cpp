// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/dequantize.h"

#include <cstring>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

// Loops of this fixed length become vector instructions.
constexpr std::size_t kLanes = 16;

FSDP_WIDE_VECTORS void multiply(float* numbers, std::size_t count, float zero, float scale) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) numbers[i + l] = (numbers[i + l] - zero) * scale;
  }
  for (; i < count; ++i) numbers[i] = (numbers[i] - zero) * scale;
}

class DequantizedSource : public ComputedSource {
 public:
  DequantizedSource(const std::shared_ptr<const Dequantization>& from, std::uint64_t numel)
      : ComputedSource(from->to, numel),
        from_(from),
        numbers_(opened(from->numbers)),
        scales_(opened(from->scales)) {
    if (from->zeros) zeros_ = opened(*from->zeros);
    if (from->columns) {
      columns_.resize(numel_of(*from->columns));
      const std::vector<std::byte> factors = elements_of(*from->columns, DType::kFloat32);
      std::memcpy(columns_.data(), factors.data(), factors.size());
    }
    if (!from->global) return;
    const std::vector<std::byte> global = elements_of(*from->global, DType::kFloat32);
    std::memcpy(&global_, global.data(), sizeof global_);
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch floats;
    const Scratch zeros;
    const auto halves = floats.first(2 * kComputedNumel * sizeof(float));
    const std::uint64_t item = item_bytes(dtype());
    for_each_run(from_->grid, first, out.size() / item, kComputedNumel, [&](const GridRun& run) {
      const auto numbers = halves.first(run.numel() * sizeof(float));
      const auto scales = halves.subspan(halves.size() / 2, run.block_count(from_->grid) * 4);
      numbers_->read_as(DType::kFloat32, first, numbers);
      const std::uint64_t first_block = run.first_block(from_->grid);
      scales_->read_as(DType::kFloat32, first_block, scales);
      if (zeros_ != nullptr)
        zeros_->read_as(DType::kFloat32, first_block, zeros.first(scales.size()));
      auto* const products = reinterpret_cast<float*>(numbers.data());
      auto* const factors = reinterpret_cast<float*>(scales.data());
      const auto* const offsets = reinterpret_cast<const float*>(zeros.bytes().data());
      if (from_->global) {
        for (std::size_t i = 0; i < scales.size() / sizeof(float); ++i)
          factors[i] = from_->divides ? factors[i] / global_ : factors[i] * global_;
      }
      for_each_block(
          from_->grid, run, [&](std::uint64_t at, std::uint64_t count, std::uint64_t block) {
            const std::uint64_t index = block - first_block;
            multiply(products + at, count, zeros_ == nullptr ? 0 : offsets[index], factors[index]);
          });
      write(first, numbers, out.first(run.numel() * item));
      out = out.subspan(run.numel() * item);
      first += run.numel();
    });
  }

 private:
  // Rounds products, those of the elements from `first` on.
  void write(std::uint64_t first, std::span<std::byte> products, std::span<std::byte> out) const {
    const bool once = from_->product == DType::kFloat32 || from_->product == from_->to;
    if (once && columns_.empty()) return cast(DType::kFloat32, products, from_->to, out);
    if (from_->product != DType::kFloat32) {
      const Scratch scratch;
      const auto narrow =
          scratch.first(products.size() / sizeof(float) * item_bytes(from_->product));
      cast(DType::kFloat32, products, from_->product, narrow);
      cast(from_->product, narrow, DType::kFloat32, products);
    }
    if (!columns_.empty()) {
      auto* const numbers = reinterpret_cast<float*>(products.data());
      for (std::uint64_t i = 0; i < products.size() / sizeof(float); ++i)
        numbers[i] *= columns_[(first + i) % columns_.size()];
    }
    cast(DType::kFloat32, products, from_->to, out);
  }

  std::shared_ptr<const Dequantization> from_;
  std::unique_ptr<ArrayReader> numbers_;
  std::unique_ptr<ArrayReader> scales_;
  std::unique_ptr<ArrayReader> zeros_;  // null: they are 0
  float global_ = 1;
  std::vector<float> columns_;  // empty: no factors
};

}  // namespace

Array dequantized(const Dequantization& from, const std::vector<std::int64_t>& shape) {
  const auto kept = std::make_shared<const Dequantization>(from);
  return computed_array(from.to, shape, [kept, numel = volume({shape, shape})] {
    return std::make_shared<DequantizedSource>(kept, numel);
  });
}

}  // namespace fsdp::formats::arrays
