// SPDX-License-Identifier: Apache-2.0
// Reads the tensors that a computed tensor is made from, by ranges of elements across their chunks,
// and compares their checksums.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "formats/changes/arithmetic/element_reader.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/piece_reader.h"

namespace fsdp::formats {

// A tensor of a checkpoint.
struct InputTensor {
  const Checkpoint* checkpoint = nullptr;
  std::size_t number = 0;  // in its index
  const TensorEntry& entry() const { return checkpoint->index().tensors[number]; }
};

// Reads the elements of one input.  Lifetime: the checkpoint and the checks outlive the reader.
class InputReader : public ElementReader {
 public:
  // Throws: the errors of Checkpoint::chunk; kHole.
  InputReader(const InputTensor& input, StorageChecks& checks);

  DType dtype() const override { return piece_.dtype; }
  // Returns whether all that is read carries checksums.
  bool checked() const { return checked_; }
  // Compares the checksums once every element was read.  StorageChecks::finish compares those of
  // chunks that were read only in part.
  // Throws: kZipCrc, kHole, the errors of reading.
  void read(std::uint64_t first, std::span<std::byte> out,
            std::span<std::byte> scratch) const override;

 private:
  TargetPiece piece_;
  bool checked_ = true;
  std::unique_ptr<PieceReader> reader_;
  std::uint64_t bytes_;
  mutable std::atomic<std::uint64_t> read_{0};
};

}  // namespace fsdp::formats
