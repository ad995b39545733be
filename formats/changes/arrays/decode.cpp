// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/decode.h"

#include <algorithm>
#include <cstring>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

constexpr std::byte kNanExponent{0xFF};

// Returns the number of each code.
std::array<float, 256> numbers_of(const Packing& packing) {
  std::array<float, 256> out{};
  if (packing.code == Code::kTable) {
    std::ranges::copy(packing.table, out.begin());
    return out;
  }
  if (packing.code == Code::kFloat4) {
    std::ranges::copy(values_by_code(DType::kFloat4E2M1FNx2), out.begin());
    return out;
  }
  const int count = 1 << packing.bits;
  for (int code = 0; code < count; ++code) {
    int number = code;
    if (packing.code == Code::kSigned && code >= count / 2) number -= count;
    if (packing.code == Code::kOffset) number -= count / 2;
    out[static_cast<std::size_t>(code)] = static_cast<float>(number);
  }
  return out;
}

class DecodedSource : public ComputedSource {
 public:
  DecodedSource(const Array& stored, const Packing& packing, const std::vector<std::int64_t>& shape)
      : ComputedSource(DType::kFloat32, volume({shape, shape})),
        stored_(opened(stored)),
        packing_(packing),
        numbers_(numbers_of(packing)),
        element_bits_(8 * item_bytes(stored.dtype)),
        ordered_(element_bits_ % packing.bits == 0 &&
                 element_bits_ / packing.bits <= packing.order.size()),
        columns_(static_cast<std::uint64_t>(shape.empty() ? 1 : shape.back())),
        stored_columns_(packing.first_dimension
                            ? columns_
                            : packed_size(columns_, packing.bits, stored.dtype)) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    std::uint64_t count = out.size() / sizeof(float);
    auto* numbers = reinterpret_cast<float*>(out.data());
    while (count != 0) {
      const std::uint64_t row = first / columns_;
      const std::uint64_t column = first % columns_;
      const std::uint64_t part = std::min(count, columns_ - column);
      packing_.first_dimension ? row_of_words(row, column, {numbers, part})
                               : along_row(row, column, {numbers, part});
      first += part;
      numbers += part;
      count -= part;
    }
  }

 private:
  // Reads numbers of one row whose elements hold numbers of several rows.
  void row_of_words(std::uint64_t row, std::uint64_t column, std::span<float> out) const {
    const std::uint64_t each = element_bits_ / packing_.bits;
    const auto place = static_cast<unsigned>(row % each);
    const unsigned shift = packing_.bits * (ordered_ ? packing_.order[place] : place);
    const Scratch scratch;
    const std::uint64_t item = element_bits_ / 8;
    const auto words = scratch.first(out.size() * item);
    stored_->read(row / each * stored_columns_ + column, words);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = numbers_[(word_at(words, i * item) + packing_.plus) >> shift & mask()];
  }

  void along_row(std::uint64_t row, std::uint64_t column, std::span<float> out) const {
    const std::uint64_t item = element_bits_ / 8;
    const std::uint64_t begin = column * packing_.bits / element_bits_;
    const std::uint64_t end =
        ((column + out.size()) * packing_.bits + element_bits_ - 1) / element_bits_;
    const Scratch scratch;
    // Zeros follow the last element, so that two bytes can be read at any number's first bit.
    const auto bytes = scratch.first((end - begin) * item + 1);
    stored_->read(row * stored_columns_ + begin, bytes.first(bytes.size() - 1));
    bytes.back() = std::byte{0};
    if (packing_.plus != 0) add(bytes);
    const std::uint64_t each = element_bits_ / packing_.bits;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t number = column + i;
      const std::uint64_t bit = (ordered_ ? number / each * element_bits_ + place_of(number % each)
                                          : number * packing_.bits) -
                                begin * element_bits_;
      const auto low = std::to_integer<unsigned>(bytes[bit / 8]);
      const auto high = std::to_integer<unsigned>(bytes[bit / 8 + 1]);
      out[i] = numbers_[(low | high << 8U) >> bit % 8 & mask()];
    }
  }

  void add(std::span<std::byte> words) const {
    for (std::size_t at = 0; at + sizeof(std::uint32_t) <= words.size();
         at += sizeof(std::uint32_t)) {
      const std::uint32_t sum = word_at(words, at) + packing_.plus;
      std::memcpy(words.data() + at, &sum, sizeof sum);
    }
  }

  std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t at) const {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, element_bits_ / 8);
    return word;
  }
  // Returns the first bit of a number in its element.
  std::uint64_t place_of(std::uint64_t number) const {
    return std::uint64_t{packing_.order[number]} * packing_.bits;
  }
  unsigned mask() const { return (1U << packing_.bits) - 1; }

  std::unique_ptr<ArrayReader> stored_;
  Packing packing_;
  std::array<float, 256> numbers_;  // by code
  std::uint64_t element_bits_;
  bool ordered_;
  std::uint64_t columns_;
  std::uint64_t stored_columns_;  // elements that hold the numbers of a row
};

class PowersSource : public ComputedSource {
 public:
  explicit PowersSource(const Array& exponents)
      : ComputedSource(DType::kFloat32, numel_of(exponents)),
        exponents_(exponents),
        reader_(opened(exponents)) {}

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch scratch;
    const auto codes = scratch.first(out.size() / sizeof(float));
    reader_->read(first, codes);
    const auto nan = std::ranges::find(codes, kNanExponent);
    if (nan != codes.end()) {
      const auto index = first + static_cast<std::uint64_t>(nan - codes.begin());
      throw Error(ErrorCode::kUnsupported,
                  cat(element_text(exponents_, index), " is 255: a scale that is NaN"));
    }
    cast(DType::kFloat8E8M0FNU, codes, DType::kFloat32, out);
  }

 private:
  Array exponents_;
  std::unique_ptr<ArrayReader> reader_;
};

}  // namespace

std::uint64_t packed_size(std::uint64_t count, unsigned bits, DType dtype) {
  const std::uint64_t element = 8 * item_bytes(dtype);
  return count / element * bits + (count % element * bits + element - 1) / element;
}

Array decoded(const Array& stored, const Packing& packing, const std::vector<std::int64_t>& shape) {
  return computed_array(DType::kFloat32, shape,
                        [=] { return std::make_shared<DecodedSource>(stored, packing, shape); });
}

Array unpacked(const Array& array) {
  const auto each = values_of_element(array.dtype);
  const auto values = values_by_code(array.dtype);
  std::vector<std::int64_t> shape = array.shape;
  if (shape.empty() ||
      __builtin_mul_overflow(shape.back(), static_cast<std::int64_t>(each), &shape.back()))
    throw Error(ErrorCode::kOverflow, "sizes exceed 64 bits");
  check_bytes(shape, DType::kFloat64);
  return decoded(array,
                 {.code = Code::kTable,
                  .bits = static_cast<unsigned>(8 * item_bytes(array.dtype) / each),
                  .table = {values.begin(), values.end()}},
                 shape);
}

Array powers_of_two(const Array& exponents) {
  return computed_array(DType::kFloat32, exponents.shape,
                        [=] { return std::make_shared<PowersSource>(exponents); });
}

}  // namespace fsdp::formats::arrays
