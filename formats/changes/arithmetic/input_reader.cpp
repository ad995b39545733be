// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/input_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/state/checkpoint/source_pieces.h"

namespace fsdp::formats {

InputReader::InputReader(const InputTensor& input, StorageChecks& checks)
    : piece_(whole_tensor_piece(*input.checkpoint, input.number)), bytes_(input.entry().bytes()) {
  std::vector<SourceChunk> chunks = piece_.sources();
  checked_ = std::all_of(chunks.begin(), chunks.end(), [](const SourceChunk& chunk) {
    return chunk.data.crc.has_value() || chunk.data.self_checked;
  });
  piece_.sources = [located = std::move(chunks)] { return located; };
  reader_ = std::make_unique<PieceReader>(piece_, checks);
}

void InputReader::read(std::uint64_t first, std::span<std::byte> out,
                       std::span<std::byte> scratch) const {
  reader_->read(first, out, scratch);
  if (read_.fetch_add(out.size()) + out.size() == bytes_) reader_->settle();
}

}  // namespace fsdp::formats
