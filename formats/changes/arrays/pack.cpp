// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/pack.h"

#include <algorithm>
#include <cstring>

#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/decode.h"

namespace fsdp::formats::arrays {
namespace {

class PackedSource : public ComputedSource {
 public:
  PackedSource(const Array& codes, unsigned bits, DType dtype,
               const std::vector<std::int64_t>& shape, bool first_dimension)
      : ComputedSource(dtype, volume({shape, shape})),
        codes_(opened(codes)),
        bits_(bits),
        element_bits_(8 * item_bytes(dtype)),
        first_dimension_(first_dimension),
        rows_(static_cast<std::uint64_t>(codes.shape.front())),
        columns_(static_cast<std::uint64_t>(codes.shape.back())),
        packed_columns_(static_cast<std::uint64_t>(shape.back())) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
    const std::uint64_t item = element_bits_ / 8;
    while (!out.empty()) {
      const std::uint64_t row = first / packed_columns_;
      const std::uint64_t column = first % packed_columns_;
      const std::uint64_t count = std::min(out.size() / item, packed_columns_ - column);
      const auto part = out.first(count * item);
      first_dimension_ ? of_rows(row, column, part) : along_row(row, column, part);
      out = out.subspan(part.size());
      first += count;
    }
  }

 private:
  // Sets the bits of a code; those that reach beyond `out` belong to the next part of the row.
  void put(std::span<std::byte> out, std::int64_t bit, std::byte code) const {
    const unsigned value = std::to_integer<unsigned>(code) & ((1U << bits_) - 1);
    for (unsigned done = 0; done < bits_;) {
      const std::int64_t at = bit + done;
      const auto inside = static_cast<unsigned>(at & 7);
      const unsigned count = std::min(8 - inside, bits_ - done);
      if (at >= 0 && static_cast<std::uint64_t>(at / 8) < out.size()) {
        out[static_cast<std::size_t>(at / 8)] |=
            static_cast<std::byte>((value >> done & ((1U << count) - 1)) << inside);
      }
      done += count;
    }
  }

  void along_row(std::uint64_t row, std::uint64_t column, std::span<std::byte> out) const {
    const std::uint64_t begin_bit = column * element_bits_;
    const std::uint64_t begin = begin_bit / bits_;
    const std::uint64_t end = std::min((begin_bit + 8 * out.size() + bits_ - 1) / bits_, columns_);
    const Scratch scratch;
    for (std::uint64_t at = begin; at < end;) {
      const auto codes = scratch.first(std::min<std::uint64_t>(kComputedNumel, end - at));
      codes_->read(row * columns_ + at, codes);
      if (bits_ == 4 && begin_bit % 8 == 0) {
        nibbles(codes, out.subspan((at - begin) / 2));
      } else {
        for (std::size_t i = 0; i < codes.size(); ++i)
          put(out,
              static_cast<std::int64_t>((at + i) * bits_) - static_cast<std::int64_t>(begin_bit),
              codes[i]);
      }
      at += codes.size();
    }
  }

  // Requires: the first code fills the low half of a byte.
  static void nibbles(std::span<const std::byte> codes, std::span<std::byte> out) {
    const std::size_t pairs = codes.size() / 2;
    for (std::size_t i = 0; i < pairs; ++i)
      out[i] = (codes[2 * i] & std::byte{0xF}) | codes[2 * i + 1] << 4;
    if (codes.size() % 2 != 0) out[pairs] = codes.back() & std::byte{0xF};
  }

  // Packs codes of several rows into the elements of one.
  void of_rows(std::uint64_t row, std::uint64_t column, std::span<std::byte> out) const {
    const std::uint64_t item = element_bits_ / 8;
    const std::uint64_t each = element_bits_ / bits_;
    const std::uint64_t count = out.size() / item;
    const Scratch scratch;
    for (std::uint64_t place = 0; place < each && row * each + place < rows_; ++place) {
      const auto codes = scratch.first(count);
      codes_->read((row * each + place) * columns_ + column, codes);
      for (std::size_t i = 0; i < codes.size(); ++i)
        put(out.subspan(i * item, item), static_cast<std::int64_t>(place * bits_), codes[i]);
    }
  }

  std::unique_ptr<ArrayReader> codes_;
  unsigned bits_;
  std::uint64_t element_bits_;
  bool first_dimension_;
  std::uint64_t rows_;
  std::uint64_t columns_;
  std::uint64_t packed_columns_;
};

}  // namespace

Array packed(const Array& codes, unsigned bits, DType dtype, bool first_dimension) {
  std::vector<std::int64_t> shape = codes.shape;
  std::int64_t& size = first_dimension ? shape.front() : shape.back();
  size = static_cast<std::int64_t>(packed_size(static_cast<std::uint64_t>(size), bits, dtype));
  return computed_array(dtype, shape, [=] {
    return std::make_shared<PackedSource>(codes, bits, dtype, shape, first_dimension);
  });
}

}  // namespace fsdp::formats::arrays
