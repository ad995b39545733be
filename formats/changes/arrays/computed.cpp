// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/computed.h"

#include <utility>

namespace fsdp::formats::arrays {
namespace {

// An array's elements as bytes.
class GatheredSource : public ComputedSource {
 public:
  GatheredSource(const Array& array, const std::shared_ptr<ReadContext>& context)
      : reader_(array, context),
        item_(item_bytes(array.dtype)),
        bytes_(volume({array.shape, array.shape}) * item_) {}
  std::uint64_t size() const override { return bytes_; }
  bool checked() const override { return reader_.checked(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    reader_.read(offset / item_, out);
  }

 private:
  ArrayReader reader_;
  std::uint64_t item_;
  std::uint64_t bytes_;
};

}  // namespace

ArrayReader::ArrayReader(const Array& array, const std::shared_ptr<ReadContext>& context)
    : context_(context) {
  piece_.key = "a computed tensor";
  piece_.dtype = array.dtype;
  piece_.box = whole_box(array.shape);
  piece_.sources = [&] {
    std::vector<SourceChunk> sources;
    for (const PlacedPart& part : placed_parts(array)) {
      sources.push_back({part.box, chunk_data(part, context)});
      const ChunkData& data = sources.back().data;
      checked_ = checked_ && (data.self_checked || data.crc.has_value());
    }
    return sources;
  };
  reader_ = std::make_unique<PieceReader>(piece_, context_->checks());
  piece_.sources = {};
}

void ArrayReader::read(std::uint64_t first, std::span<std::byte> out) const {
  const Scratch scratch(*context_);
  reader_->read(first, out, scratch.bytes());
}

ChunkData DenseOperand::open(std::size_t /*chunk*/,
                             const std::shared_ptr<ReadContext>& context) const {
  ChunkData data;
  const auto computed = source(context);
  data.source = computed;
  data.file = "a computed tensor";
  data.storage_bytes = computed->size();
  data.self_checked = computed->checked();
  data.dtype = dtype_;
  return data;
}

std::shared_ptr<const ComputedSource> Gathered::source(
    const std::shared_ptr<ReadContext>& context) const {
  return std::make_shared<GatheredSource>(array_, context);
}

}  // namespace fsdp::formats::arrays
