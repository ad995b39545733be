// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/elementwise.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/crc32.h"
#include "formats/changes/arrays/computed.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats::arrays {
namespace {

template <typename Number>
void apply(const ElementStep& step, std::span<std::byte> elements) {
  const auto number = static_cast<Number>(step.number);
  for (std::size_t at = 0; at < elements.size(); at += sizeof(Number)) {
    Number value;
    std::memcpy(&value, elements.data() + at, sizeof value);
    value = step.kind == Arithmetic::kAdd ? value + number : value * number;
    std::memcpy(elements.data() + at, &value, sizeof value);
  }
}

// Elements of a storage with a step applied, in the order of the storage.
class StepSource : public ByteSource {
 public:
  StepSource(ChunkData data, const ElementStep& step, DType to,
             std::shared_ptr<StorageChecks> checks)
      : data_(std::move(data)),
        step_(step),
        to_(to),
        from_item_(item_bytes(data_.dtype)),
        to_item_(item_bytes(to)),
        checks_(std::move(checks)) {}

  std::uint64_t size() const override { return data_.storage_bytes / from_item_ * to_item_; }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const Scratch from;
    while (!out.empty()) {
      const std::uint64_t count = std::min(kComputedNumel, out.size() / to_item_);
      const auto in = from.first(count * from_item_);
      const std::uint64_t at = offset / to_item_ * from_item_;
      data_.source->read_at(data_.storage_offset + at, in);
      if (checks_ && checks_->wants(data_)) checks_->read(data_, {at, in.size(), crc32(0, in)});
      transform_elements(data_, in);
      compute(in, out.first(count * to_item_));
      offset += count * to_item_;
      out = out.subspan(count * to_item_);
    }
  }

 private:
  void compute(std::span<std::byte> in, std::span<std::byte> out) const {
    if (step_.kind == Arithmetic::kCast) return cast(data_.dtype, in, to_, out);
    const bool wide = data_.dtype == DType::kFloat64;
    const DType real = wide ? DType::kFloat64 : DType::kFloat32;
    const Scratch scratch;
    const auto numbers = scratch.first(in.size() / from_item_ * item_bytes(real));
    cast(data_.dtype, in, real, numbers);
    wide ? apply<double>(step_, numbers) : apply<float>(step_, numbers);
    cast(real, numbers, to_, out);
  }

  ChunkData data_;
  ElementStep step_;
  DType to_;
  std::uint64_t from_item_;
  std::uint64_t to_item_;
  std::shared_ptr<StorageChecks> checks_;
};

// An operand with a step applied to the elements of each chunk's storage.
class Stepped : public Operand {
 public:
  Stepped(std::shared_ptr<const Operand> operand, const ElementStep& step)
      : operand_(std::move(operand)), step_(step) {}
  DType dtype() const override {
    return step_.kind == Arithmetic::kCast ? step_.to : operand_->dtype();
  }
  std::string key() const override { return operand_->key(); }
  std::string name() const override { return operand_->name(); }
  std::size_t chunk_count() const override { return operand_->chunk_count(); }
  Box chunk_box(std::size_t chunk) const override { return operand_->chunk_box(chunk); }
  bool expect(std::size_t chunk) const override { return operand_->expect(chunk); }

  ChunkData open(std::size_t chunk) const override {
    ChunkData from = operand_->open(chunk);
    const auto checks = operand_->checks();
    if (checks) checks->note(operand_->key(), from);
    ChunkData data;
    data.file = from.file;
    data.file_offset = from.file_offset;
    data.self_checked = from.self_checked || from.crc.has_value();
    data.dtype = dtype();
    data.first = from.first;
    data.strides = from.strides;
    data.source = std::make_shared<StepSource>(std::move(from), step_, dtype(), checks);
    data.storage_bytes = data.source->size();
    return data;
  }

 private:
  std::shared_ptr<const Operand> operand_;
  ElementStep step_;
};

class RepeatedSource : public ComputedSource {
 public:
  RepeatedSource(DType dtype, std::uint64_t numel, std::vector<std::byte> elements)
      : ComputedSource(dtype, numel), elements_(std::move(elements)) {
    constexpr std::size_t kLeastBytes = 4096;
    while (elements_.size() < kLeastBytes) {
      const std::vector<std::byte> once = elements_;
      elements_.insert(elements_.end(), once.begin(), once.end());
    }
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    std::size_t at = first * item_bytes(dtype()) % elements_.size();
    while (!out.empty()) {
      const std::size_t run = std::min(out.size(), elements_.size() - at);
      std::memcpy(out.data(), elements_.data() + at, run);
      out = out.subspan(run);
      at = 0;
    }
  }

 private:
  std::vector<std::byte> elements_;
};

}  // namespace

Array with_step(const Array& array, const ElementStep& step) {
  Array out = array;
  if (step.kind == Arithmetic::kCast) {
    if (step.to == array.dtype) return out;
    out.dtype = step.to;
  }
  std::map<const Operand*, std::shared_ptr<const Operand>> made;
  for (Part& part : out.parts) {
    auto& stepped = made[part.operand.get()];
    if (stepped == nullptr) stepped = std::make_shared<Stepped>(part.operand, step);
    part.operand = stepped;
  }
  return out;
}

Array repeated_array(DType dtype, const std::vector<std::int64_t>& shape,
                     const std::vector<std::byte>& elements) {
  return computed_array(dtype, shape, [=, numel = volume({shape, shape})] {
    return std::make_shared<RepeatedSource>(dtype, numel, elements);
  });
}

Array constant_array(DType dtype, const std::vector<std::int64_t>& shape, double value) {
  std::vector<std::byte> element(item_bytes(dtype));
  if (value != 0) cast(DType::kFloat64, std::as_bytes(std::span(&value, 1)), dtype, element);
  return repeated_array(dtype, shape, element);
}

}  // namespace fsdp::formats::arrays
