// SPDX-License-Identifier: Apache-2.0
// The weighted sum of several tensors of one shape, as bytes that are computed while they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "formats/arithmetic/input_reader.h"
#include "formats/arithmetic/weighted_sum.h"
#include "formats/base/byte_source.h"

namespace fsdp::formats {

// How inputs are added up; see Note [order of a sum].
struct SumRule {
  std::vector<double> weights;  // of each input
  std::optional<double> divisor;
  Accumulator accumulator = Accumulator::kFloat32;
};

// Memory: about 1 MiB for each thread that reads at the same time.
class SumSource : public ByteSource {
 public:
  // Requires: one input for each weight, of floating types and `numel` elements each.
  // Lifetime: `rule` outlives it.
  SumSource(const SumRule& rule, std::vector<std::unique_ptr<InputReader>> inputs, DType to,
            std::uint64_t numel);

  std::uint64_t size() const override { return numel_ * item_; }
  // Requires: whole elements.  Throws: what InputReader::read throws.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  // The buffers of one read.
  struct Workspace {
    explicit Workspace(Accumulator accumulator) : sum(accumulator) {}
    WeightedSum sum;
    std::vector<std::byte> elements;
    std::vector<std::byte> scratch;
  };
  std::unique_ptr<Workspace> take() const;
  void give_back(std::unique_ptr<Workspace> workspace) const;

  const SumRule& rule_;
  std::vector<std::unique_ptr<InputReader>> inputs_;
  DType to_;
  std::uint64_t numel_;
  std::uint64_t item_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace fsdp::formats
