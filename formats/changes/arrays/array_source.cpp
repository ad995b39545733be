// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/array_source.h"

#include <utility>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats::arrays {
namespace {

class SourceOperand : public Operand {
 public:
  SourceOperand(std::shared_ptr<const Checkpoint> source, std::size_t tensor,
                std::shared_ptr<StorageChecks> checks)
      : source_(std::move(source)),
        tensor_(source_->index().tensors.at(tensor)),
        checks_(std::move(checks)) {}
  DType dtype() const override { return tensor_.dtype; }
  std::string key() const override { return tensor_.key; }
  std::string name() const override {
    return cat(source_->description().path, ": ", quote(tensor_.key, 200));
  }
  std::size_t chunk_count() const override { return tensor_.chunks.size(); }
  Box chunk_box(std::size_t chunk) const override {
    const BoxView box = tensor_.chunks.box(chunk);
    return {{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}};
  }
  ChunkData open(std::size_t chunk) const override { return source_->chunk(tensor_, chunk); }
  bool expect(std::size_t chunk) const override {
    return source_->expect_chunk(tensor_, chunk, {0, volume(tensor_.chunks.box(chunk))});
  }
  std::shared_ptr<StorageChecks> checks() const override { return checks_; }

 private:
  std::shared_ptr<const Checkpoint> source_;
  const TensorEntry& tensor_;
  std::shared_ptr<StorageChecks> checks_;
};

}  // namespace

ArraySource::ArraySource(std::shared_ptr<const Checkpoint> checkpoint)
    : checkpoint_(std::move(checkpoint)),
      checks_(std::make_shared<StorageChecks>(true)),
      operands_(checkpoint_->index().tensors.size()) {}

Array ArraySource::array(std::size_t tensor) {
  auto& operand = operands_.at(tensor);
  if (operand == nullptr) operand = std::make_shared<SourceOperand>(checkpoint_, tensor, checks_);
  return whole_array(operand, entry(tensor).shape);
}

void ArraySource::finish() const {
  checks_->finish(Scratch().bytes(), [] { return interrupted(); });
  checkpoint_->check_unchanged();
}

bool equal_tensors(const Checkpoint& checkpoint, std::size_t one, std::size_t other) {
  ArraySource source(checkpoint);
  return one == other || equal_arrays(source.array(one), source.array(other));
}

}  // namespace fsdp::formats::arrays
