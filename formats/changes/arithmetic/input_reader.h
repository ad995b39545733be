// SPDX-License-Identifier: Apache-2.0
// The tensors that a computed tensor is made from: read by ranges of elements, whatever their
// chunks, with their checksums compared.
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

// The located elements of one input.  Lifetime: checkpoint and checks outlive it.
class InputReader : public ElementReader {
 public:
  // Throws: what Checkpoint::chunk throws; kHole.
  InputReader(const InputTensor& input, StorageChecks& checks);

  DType dtype() const override { return piece_.dtype; }
  // Whether all that is read carries a checksum.
  bool checked() const { return checked_; }
  // The checksums are compared when every element was read; those of chunks that were read in part
  // by StorageChecks::finish.
  // Throws: kZipCrc, kHole, what reading throws.
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
