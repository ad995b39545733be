// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/dequantize.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/read_context.h"

namespace fsdp::formats::arrays {
namespace {

constexpr std::byte kNanScale{0xFF};
// The numbers of E2M1 by their codes.
constexpr std::array<float, 16> kFloat4 = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
// Loops of this fixed length become vector instructions.
constexpr std::size_t kLanes = 16;

FSDP_WIDE_VECTORS void multiply(float* numbers, std::size_t count, float scale) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) numbers[i + l] *= scale;
  }
  for (; i < count; ++i) numbers[i] *= scale;
}

// What a dequantized tensor is made of.
struct Scaled {
  Array numbers;
  Array scales;
  BlockGrid grid;
  DType to = DType::kFloat32;
  bool mxfp4 = false;
};

class DequantizedSource : public ComputedSource {
 public:
  DequantizedSource(const std::shared_ptr<const Scaled>& from, std::uint64_t numel,
                    const std::shared_ptr<ReadContext>& context)
      : from_(from),
        numel_(numel),
        item_(item_bytes(from->to)),
        context_(context),
        numbers_(from->numbers, context),
        scales_(from->scales, context) {}
  std::uint64_t size() const override { return numel_ * item_; }
  bool checked() const override { return numbers_.checked() && scales_.checked(); }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const Scratch floats(*context_);
    const Scratch raw(*context_);
    const auto halves = floats.bytes().first(2 * kComputedNumel * sizeof(float));
    std::uint64_t first = offset / item_;
    for_each_run(from_->grid, first, out.size() / item_, kComputedNumel, [&](const GridRun& run) {
      const auto numbers = halves.first(run.numel() * sizeof(float));
      const auto scales = halves.subspan(halves.size() / 2, run.block_count(from_->grid) * 4);
      if (from_->mxfp4) {
        read_packed(first, numbers, raw.bytes());
      } else {
        const auto codes = raw.bytes().first(run.numel() * item_bytes(from_->numbers.dtype));
        numbers_.read(first, codes);
        cast(from_->numbers.dtype, codes, DType::kFloat32, numbers);
      }
      read_scales(run, scales, raw.bytes());
      auto* const products = reinterpret_cast<float*>(numbers.data());
      const auto* const factors = reinterpret_cast<const float*>(scales.data());
      const std::uint64_t first_block = run.first_block(from_->grid);
      for_each_block(from_->grid, run,
                     [&](std::uint64_t at, std::uint64_t count, std::uint64_t block) {
                       multiply(products + at, count, factors[block - first_block]);
                     });
      cast(DType::kFloat32, numbers, from_->to, out.first(run.numel() * item_));
      out = out.subspan(run.numel() * item_);
      first += run.numel();
    });
  }

 private:
  // Reads the elements from `first` on; a byte holds two.
  void read_packed(std::uint64_t first, std::span<std::byte> numbers,
                   std::span<std::byte> raw) const {
    const std::uint64_t count = numbers.size() / sizeof(float);
    const auto codes = raw.first((first + count - 1) / 2 - first / 2 + 1);
    numbers_.read(first / 2, codes);
    auto* const out = reinterpret_cast<float*>(numbers.data());
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t at = first % 2 + i;
      const auto byte = std::to_integer<std::size_t>(codes[at / 2]);
      out[i] = kFloat4[at % 2 == 0 ? byte & 0xFU : byte >> 4U];
    }
  }

  void read_scales(const GridRun& run, std::span<std::byte> scales,
                   std::span<std::byte> raw) const {
    const std::uint64_t first = run.first_block(from_->grid);
    const auto codes = raw.first(scales.size() / sizeof(float) * item_bytes(from_->scales.dtype));
    scales_.read(first, codes);
    if (!from_->mxfp4) {
      cast(from_->scales.dtype, codes, DType::kFloat32, scales);
      return;
    }
    const auto nan = std::find(codes.begin(), codes.end(), kNanScale);
    if (nan != codes.end()) {
      const auto index = first + static_cast<std::uint64_t>(nan - codes.begin());
      throw Error(ErrorCode::kUnsupported,
                  cat(element_text(from_->scales, index), " is 255: a scale of mxfp4 that is NaN"));
    }
    cast(DType::kFloat8E8M0FNU, codes, DType::kFloat32, scales);
  }

  std::shared_ptr<const Scaled> from_;
  std::uint64_t numel_;
  std::uint64_t item_;
  std::shared_ptr<ReadContext> context_;
  ArrayReader numbers_;
  ArrayReader scales_;
};

class Dequantized : public DenseOperand {
 public:
  Dequantized(Scaled from, std::vector<std::int64_t> shape)
      : DenseOperand(from.to, std::move(shape)),
        from_(std::make_shared<const Scaled>(std::move(from))) {}

 protected:
  std::shared_ptr<const ComputedSource> source(
      const std::shared_ptr<ReadContext>& context) const override {
    return std::make_shared<DequantizedSource>(from_, volume({shape(), shape()}), context);
  }

 private:
  std::shared_ptr<const Scaled> from_;
};

}  // namespace

Array dequantized_array(const Array& numbers, const Array& scales, const BlockGrid& grid,
                        const std::vector<std::int64_t>& shape, DType to) {
  return whole_array(std::make_shared<Dequantized>(Scaled{numbers, scales, grid, to, false}, shape),
                     shape);
}

Array dequantized_mxfp4(const Array& numbers, const Array& scales, const BlockGrid& grid,
                        const std::vector<std::int64_t>& shape, DType to) {
  return whole_array(std::make_shared<Dequantized>(Scaled{numbers, scales, grid, to, true}, shape),
                     shape);
}

}  // namespace fsdp::formats::arrays
