// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/array_checkpoint.h"

#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::arrays {
namespace {

class SourceOperand : public Operand {
 public:
  SourceOperand(const Checkpoint& source, std::size_t tensor)
      : source_(source), tensor_(source.index().tensors.at(tensor)) {}
  DType dtype() const override { return tensor_.dtype; }
  std::string name() const override {
    return cat(source_.description().path, ": ", quote(tensor_.key, 200));
  }
  std::size_t chunk_count() const override { return tensor_.chunks.size(); }
  Box chunk_box(std::size_t chunk) const override {
    const BoxView box = tensor_.chunks.box(chunk);
    return {{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}};
  }
  ChunkData open(std::size_t chunk,
                 const std::shared_ptr<ReadContext>& /*context*/) const override {
    return source_.chunk(tensor_, chunk);
  }
  bool expect(std::size_t chunk) const override {
    return source_.expect_chunk(tensor_, chunk, {0, volume(tensor_.chunks.box(chunk))});
  }

 private:
  const Checkpoint& source_;
  const TensorEntry& tensor_;
};

}  // namespace

ArrayCheckpoint::ArrayCheckpoint(const Checkpoint& source)
    : source_(source), operands_(source.index().tensors.size()) {
  description_ = source.description();
  index_.files = source.index().files;
  index_.transforms = source.index().transforms;
}

Array ArrayCheckpoint::source_array(std::size_t tensor) {
  auto& operand = operands_.at(tensor);
  if (operand == nullptr) operand = std::make_shared<SourceOperand>(source_, tensor);
  return whole_array(operand, source_.index().tensors[tensor].shape);
}

std::size_t ArrayCheckpoint::add(KeyPath path, const Array& array) {
  TensorEntry entry;
  entry.key = joined(path);
  entry.path = std::move(path);
  entry.dtype = array.dtype;
  entry.shape = array.shape;
  entry.chunks = ChunkList(array.shape.size());
  std::vector<PlacedPart> placed = placed_parts(array);
  entry.chunks.reserve(placed.size());
  for (PlacedPart& part : placed) {
    Location location;
    location.offset = parts_.size();
    location.length = volume(part.box.view()) * item_bytes(array.dtype);
    entry.chunks.add(part.box.offset, part.box.size, location);
    parts_.push_back(std::move(part));
  }
  index_.add(std::move(entry));
  return index_.tensors.size() - 1;
}

ChunkData ArrayCheckpoint::chunk(const TensorEntry& tensor, std::size_t chunk) const {
  return chunk_data(parts_.at(tensor.chunks.location(chunk).offset), context_);
}

bool ArrayCheckpoint::expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                                   ElementRange /*part*/) const {
  const PlacedPart& part = parts_.at(tensor.chunks.location(chunk).offset);
  return part.operand->expect(part.chunk);
}

Value ArrayCheckpoint::value(const ValueEntry& value) const {
  return source_.value(value);
}

ChunkData ArrayCheckpoint::storage(const StorageRef& storage) const {
  return source_.storage(storage);
}

VerifyReport ArrayCheckpoint::verify(const VerifyOptions& options) const {
  return source_.verify(options);
}

void ArrayCheckpoint::check_unchanged() const {
  context_->finish();
  source_.check_unchanged();
}

}  // namespace fsdp::formats::arrays
