// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/computed.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::arrays {
namespace {

class ComputedOperand : public Operand {
 public:
  ComputedOperand(DType dtype, std::vector<std::int64_t> shape,
                  std::function<std::shared_ptr<const ComputedSource>()> make)
      : dtype_(dtype), shape_(std::move(shape)), make_(std::move(make)) {}
  DType dtype() const override { return dtype_; }
  std::size_t chunk_count() const override { return 1; }
  Box chunk_box(std::size_t /*chunk*/) const override { return whole_box(shape_); }
  bool computes() const override { return true; }
  ChunkData open(std::size_t /*chunk*/) const override {
    const auto source = make_();
    ChunkData data;
    data.source = source;
    data.file = key();
    data.storage_bytes = source->size();
    data.self_checked = source->checked();
    data.dtype = dtype_;
    return data;
  }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::function<std::shared_ptr<const ComputedSource>()> make_;
};

class GatheredSource : public ComputedSource {
 public:
  explicit GatheredSource(const Array& array)
      : ComputedSource(array.dtype, numel_of(array)), reader_(opened(array)) {}

  // Large blocks cost less if elements lie apart.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    compute(offset / item_bytes(dtype()), out);
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    reader_->read(first, out);
  }

 private:
  std::unique_ptr<ArrayReader> reader_;
};

}  // namespace

ArrayReader::ArrayReader(const Array& array) : bytes_(numel_of(array) * item_bytes(array.dtype)) {
  piece_.key = array.parts.empty() ? "" : array.parts.front().operand->key();
  piece_.dtype = array.dtype;
  piece_.box = whole_box(array.shape);
  for (const Part& part : array.parts) {
    if (checks_ == nullptr) checks_ = part.operand->checks();
  }
  if (checks_ == nullptr) checks_ = std::make_shared<StorageChecks>(false);
  piece_.sources = [&] {
    std::vector<SourceChunk> sources;
    for (const PlacedPart& part : placed_parts(array)) {
      sources.push_back({part.box, chunk_data(part, part.operand->open(part.chunk))});
      const ChunkData& data = sources.back().data;
      checked_ = checked_ && (data.self_checked || data.crc.has_value());
    }
    return sources;
  };
  reader_ = std::make_unique<PieceReader>(piece_, *checks_);
  piece_.sources = {};
}

void ArrayReader::read(std::uint64_t first, std::span<std::byte> out) const {
  reader_->read(first, out, Scratch().bytes());
  if (read_.fetch_add(out.size()) + out.size() == bytes_) reader_->settle();
}

void ArrayReader::read_as(DType to, std::uint64_t first, std::span<std::byte> out) const {
  if (to == dtype()) return read(first, out);
  const Scratch scratch;
  while (!out.empty()) {
    const std::size_t count = std::min(kComputedNumel, out.size() / item_bytes(to));
    const auto elements = scratch.first(count * item_bytes(dtype()));
    read(first, elements);
    cast(dtype(), elements, to, out.first(count * item_bytes(to)));
    out = out.subspan(count * item_bytes(to));
    first += count;
  }
}

bool equal_arrays(const Array& a, const Array& b,
                  const std::function<void(std::uint64_t)>& on_bytes) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const ArrayReader left(a);
  const ArrayReader right(b);
  const Scratch left_scratch;
  const Scratch right_scratch;
  const std::uint64_t item = item_bytes(a.dtype);
  bool equal = true;
  for (std::uint64_t at = 0; at < numel_of(a) && (equal || on_bytes);) {
    throw_if_interrupted();
    const std::uint64_t count =
        std::min<std::uint64_t>(left_scratch.bytes().size() / item, numel_of(a) - at);
    const auto one = left_scratch.first(count * item);
    const auto other = right_scratch.first(count * item);
    left.read(at, one);
    right.read(at, other);
    if (on_bytes) on_bytes(2 * one.size());
    equal = equal && std::equal(one.begin(), one.end(), other.begin());
    at += count;
  }
  return equal;
}

void ComputedSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  const std::uint64_t item = item_bytes(dtype_);
  if (offset % item != 0 || out.size() % item != 0 || offset > size() ||
      out.size() > size() - offset) {
    throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", size(),
                                           " are not whole elements of a computed tensor"));
  }
  while (!out.empty()) {
    const auto part = out.first(std::min(out.size(), kComputedNumel * item));
    compute(offset / item, part);
    offset += part.size();
    out = out.subspan(part.size());
  }
}

std::unique_ptr<ArrayReader> ComputedSource::opened(const Array& array) {
  auto reader = std::make_unique<ArrayReader>(array);
  if (!reader->checked()) note_unchecked();
  return reader;
}

std::vector<std::byte> ComputedSource::elements_of(const Array& array, DType to) {
  std::vector<std::byte> elements(numel_of(array) * item_bytes(to));
  opened(array)->read_as(to, 0, elements);
  return elements;
}

Array computed_array(DType dtype, std::vector<std::int64_t> shape,
                     std::function<std::shared_ptr<const ComputedSource>()> open) {
  auto operand = std::make_shared<ComputedOperand>(dtype, shape, std::move(open));
  return whole_array(std::move(operand), std::move(shape));
}

Array gathered(const Array& array, std::span<const std::int64_t> shape) {
  return computed_array(array.dtype, {shape.begin(), shape.end()},
                        [array] { return std::make_shared<GatheredSource>(array); });
}

}  // namespace fsdp::formats::arrays
