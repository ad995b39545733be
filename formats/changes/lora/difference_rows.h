// SPDX-License-Identifier: Apache-2.0
// The difference that training made to a weight, read by rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/changes/arithmetic/input_reader.h"
#include "formats/changes/arithmetic/low_rank_factors.h"

namespace fsdp::formats {

// One tensor of the checkpoint that an adapter is for, or of the one that was trained.
struct DifferenceSide {
  InputTensor input;
  StorageChecks* checks = nullptr;
};

// tuned - base in float64: both elements are converted exactly, and the difference is rounded once.
// Lifetime: the checkpoints and checks of both sides outlive it.
class DifferenceRows : public MatrixRows {
 public:
  // Requires: matrices of one shape, of floating types.  Throws: what InputReader throws.
  // `on_bytes`: called with the number of bytes that were read from both since the last call.
  DifferenceRows(const DifferenceSide& base, const DifferenceSide& tuned,
                 std::function<void(std::uint64_t)> on_bytes);

  std::size_t rows() const override { return rows_; }
  std::size_t columns() const override { return columns_; }
  // Throws: kUnsupported, naming the checkpoint, for NaN and infinite elements; what reading
  // throws.
  void read(std::size_t first, std::span<double> out) override;
  // Returns whether everything that is read has checksums.
  bool checked() const { return base_.checked() && tuned_.checked(); }

 private:
  void read_side(const InputReader& reader, const InputTensor& input, std::uint64_t first,
                 std::span<double> out);

  InputTensor base_input_;
  InputTensor tuned_input_;
  InputReader base_;
  InputReader tuned_;
  std::size_t rows_;
  std::size_t columns_;
  std::function<void(std::uint64_t)> on_bytes_;
  std::vector<std::byte> elements_;
  std::vector<std::byte> scratch_;
  std::vector<double> numbers_;
};

}  // namespace fsdp::formats
