// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/elementwise.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/crc32.h"
#include "formats/changes/arrays/read_context.h"

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
             std::shared_ptr<ReadContext> context)
      : data_(std::move(data)),
        step_(step),
        to_(to),
        from_item_(item_bytes(data_.dtype)),
        to_item_(item_bytes(to)),
        context_(std::move(context)) {}

  std::uint64_t size() const override { return data_.storage_bytes / from_item_ * to_item_; }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const Scratch from(*context_);
    for (std::uint64_t done = 0; done < out.size();) {
      const std::uint64_t count =
          std::min<std::uint64_t>(kComputedNumel, (out.size() - done) / to_item_);
      const auto in = from.bytes().first(count * from_item_);
      const std::uint64_t at = (offset + done) / to_item_ * from_item_;
      data_.source->read_at(data_.storage_offset + at, in);
      if (context_->checks().wants(data_))
        context_->checks().read(data_, {at, in.size(), crc32(0, in)});
      transform_elements(data_, in);
      compute(in, out.subspan(done, count * to_item_));
      done += count * to_item_;
    }
  }

 private:
  void compute(std::span<std::byte> in, std::span<std::byte> out) const {
    if (step_.kind == Arithmetic::kCast) {
      cast(data_.dtype, in, to_, out);
    } else if (data_.dtype == DType::kFloat64) {
      apply<double>(step_, in);
      std::memcpy(out.data(), in.data(), in.size());
    } else if (data_.dtype == DType::kFloat32) {
      apply<float>(step_, in);
      std::memcpy(out.data(), in.data(), in.size());
    } else {
      const Scratch wide(*context_);
      const auto numbers = wide.bytes().first(in.size() / from_item_ * sizeof(float));
      cast(data_.dtype, in, DType::kFloat32, numbers);
      apply<float>(step_, numbers);
      cast(DType::kFloat32, numbers, to_, out);
    }
  }

  ChunkData data_;
  ElementStep step_;
  DType to_;
  std::uint64_t from_item_;
  std::uint64_t to_item_;
  std::shared_ptr<ReadContext> context_;
};

// An operand with a step applied to the elements of each chunk's storage.
class Stepped : public Operand {
 public:
  Stepped(std::shared_ptr<const Operand> operand, const ElementStep& step)
      : operand_(std::move(operand)), step_(step) {}
  DType dtype() const override {
    return step_.kind == Arithmetic::kCast ? step_.to : operand_->dtype();
  }
  std::string name() const override { return operand_->name(); }
  std::size_t chunk_count() const override { return operand_->chunk_count(); }
  Box chunk_box(std::size_t chunk) const override { return operand_->chunk_box(chunk); }
  bool expect(std::size_t chunk) const override { return operand_->expect(chunk); }

  ChunkData open(std::size_t chunk, const std::shared_ptr<ReadContext>& context) const override {
    ChunkData from = operand_->open(chunk, context);
    context->checks().note(from.file, from);
    ChunkData data;
    data.file = from.file;
    data.file_offset = from.file_offset;
    data.self_checked = from.self_checked || from.crc.has_value();
    data.dtype = dtype();
    data.first = from.first;
    data.strides = from.strides;
    data.source = std::make_shared<StepSource>(std::move(from), step_, dtype(), context);
    data.storage_bytes = data.source->size();
    return data;
  }

 private:
  std::shared_ptr<const Operand> operand_;
  ElementStep step_;
};

class Bytes : public ByteSource {
 public:
  explicit Bytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    MemorySource(bytes_).read_at(offset, out);
  }

 private:
  std::vector<std::byte> bytes_;
};

// One element that stands for all elements of an array.
class Constant : public Operand {
 public:
  Constant(DType dtype, double value) : dtype_(dtype), element_(item_bytes(dtype)) {
    if (value == 0) return;
    std::vector<std::byte> number(sizeof value);
    std::memcpy(number.data(), &value, sizeof value);
    if (dtype == DType::kFloat64) {
      element_ = number;
    } else {
      cast(DType::kFloat64, number, dtype, element_);
    }
  }
  DType dtype() const override { return dtype_; }
  std::size_t chunk_count() const override { return 1; }
  Box chunk_box(std::size_t /*chunk*/) const override { return {}; }
  ChunkData open(std::size_t /*chunk*/,
                 const std::shared_ptr<ReadContext>& /*context*/) const override {
    ChunkData data;
    data.source = std::make_shared<Bytes>(element_);
    data.file = "a constant";
    data.storage_bytes = element_.size();
    data.self_checked = true;
    data.dtype = dtype_;
    return data;
  }

 private:
  DType dtype_;
  std::vector<std::byte> element_;
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

Array constant_array(DType dtype, std::vector<std::int64_t> shape, double value) {
  Array array;
  array.dtype = dtype;
  Part part;
  part.box = whole_box(shape);
  part.view.dim.assign(shape.size(), View::kNone);
  part.view.step.assign(shape.size(), 0);
  array.shape = std::move(shape);
  if (volume(part.box.view()) == 0) return array;
  part.operand = std::make_shared<Constant>(dtype, value);
  array.parts.push_back(std::move(part));
  return array;
}

}  // namespace fsdp::formats::arrays
