// SPDX-License-Identifier: Apache-2.0
// The weighted sum of several tensors of one shape, as bytes computed while they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/spares.h"
#include "formats/changes/arithmetic/input_reader.h"
#include "formats/changes/arithmetic/weighted_sum.h"

namespace fsdp::formats {

// How inputs are added up; see Note [order of a sum].
struct SumRule {
  std::vector<double> weights;  // of each input
  std::optional<double> divisor;
  Accumulator accumulator = Accumulator::kFloat32;
};

// The buffers of one read: about 1 MiB.
struct SumBuffers {
  explicit SumBuffers(Accumulator accumulator) : sum(accumulator) {}
  WeightedSum sum;
  std::vector<std::byte> elements;
  std::vector<std::byte> scratch;
};

class SumSource : public ByteSource {
 public:
  // `buffers`: each reading thread takes one and gives it back; they are for this accumulator.
  // Requires: one input for each weight, of floating types and `numel` elements each.
  // Lifetime: `rule` and `buffers` outlive the source.
  SumSource(const SumRule& rule, Spares<SumBuffers>& buffers,
            std::vector<std::unique_ptr<InputReader>> inputs, DType to, std::uint64_t numel);

  std::uint64_t size() const override { return numel_ * item_; }
  // Requires: whole elements.  Throws: the errors of InputReader::read.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  const SumRule& rule_;
  Spares<SumBuffers>& buffers_;
  std::vector<std::unique_ptr<InputReader>> inputs_;
  DType to_;
  std::uint64_t numel_;
  std::uint64_t item_;
};

}  // namespace fsdp::formats
