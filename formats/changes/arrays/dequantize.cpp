// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/dequantize.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/vector_clones.h"
#include "formats/changes/arrays/computed.h"

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
  DequantizedSource(const std::shared_ptr<const Scaled>& from, std::uint64_t numel)
      : ComputedSource(from->to, numel),
        from_(from),
        numbers_(opened(from->numbers)),
        scales_(opened(from->scales)) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch floats;
    const Scratch raw;
    const auto halves = floats.first(2 * kComputedNumel * sizeof(float));
    const std::uint64_t item = item_bytes(dtype());
    for_each_run(from_->grid, first, out.size() / item, kComputedNumel, [&](const GridRun& run) {
      const auto numbers = halves.first(run.numel() * sizeof(float));
      const auto scales = halves.subspan(halves.size() / 2, run.block_count(from_->grid) * 4);
      if (from_->mxfp4) {
        read_packed(first, numbers, raw.bytes());
      } else {
        numbers_->read_as(DType::kFloat32, first, numbers);
      }
      read_scales(run, scales, raw.bytes());
      auto* const products = reinterpret_cast<float*>(numbers.data());
      const auto* const factors = reinterpret_cast<const float*>(scales.data());
      const std::uint64_t first_block = run.first_block(from_->grid);
      for_each_block(from_->grid, run,
                     [&](std::uint64_t at, std::uint64_t count, std::uint64_t block) {
                       multiply(products + at, count, factors[block - first_block]);
                     });
      cast(DType::kFloat32, numbers, from_->to, out.first(run.numel() * item));
      out = out.subspan(run.numel() * item);
      first += run.numel();
    });
  }

 private:
  // Reads the elements from `first` on; a byte holds two.
  void read_packed(std::uint64_t first, std::span<std::byte> numbers,
                   std::span<std::byte> raw) const {
    const std::uint64_t count = numbers.size() / sizeof(float);
    const auto codes = raw.first((first + count - 1) / 2 - first / 2 + 1);
    numbers_->read(first / 2, codes);
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
    if (!from_->mxfp4) return scales_->read_as(DType::kFloat32, first, scales);
    const auto codes = raw.first(scales.size() / sizeof(float));
    scales_->read(first, codes);
    const auto nan = std::ranges::find(codes, kNanScale);
    if (nan != codes.end()) {
      const auto index = first + static_cast<std::uint64_t>(nan - codes.begin());
      throw Error(ErrorCode::kUnsupported,
                  cat(element_text(from_->scales, index), " is 255: a scale of mxfp4 that is NaN"));
    }
    cast(DType::kFloat8E8M0FNU, codes, DType::kFloat32, scales);
  }

  std::shared_ptr<const Scaled> from_;
  std::unique_ptr<ArrayReader> numbers_;
  std::unique_ptr<ArrayReader> scales_;
};

}  // namespace

Array dequantized(const Array& numbers, const Array& scales, const BlockGrid& grid,
                  const std::vector<std::int64_t>& shape, DType to, bool mxfp4) {
  const auto from = std::make_shared<const Scaled>(Scaled{numbers, scales, grid, to, mxfp4});
  return computed_array(to, shape, [from, numel = volume({shape, shape})] {
    return std::make_shared<DequantizedSource>(from, numel);
  });
}

}  // namespace fsdp::formats::arrays
