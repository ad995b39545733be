// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/sum.h"

#include <utility>

#include "formats/bytes/base/spares.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

class SumSource : public ComputedSource {
 public:
  SumSource(const std::vector<Array>& arrays, std::shared_ptr<const SumRule> rule, DType to)
      : ComputedSource(to, numel_of(arrays.front())), rule_(std::move(rule)) {
    for (const Array& array : arrays) readers_.push_back(opened(array));
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const auto sum = sums_.take(rule_->accumulator);
    const Scratch scratch;
    const std::size_t count = out.size() / item_bytes(dtype());
    sum->begin(count);
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      const auto elements = scratch.first(count * item_bytes(readers_[i]->dtype()));
      readers_[i]->read(first, elements);
      sum->add(readers_[i]->dtype(), elements, rule_->weights[i]);
    }
    sum->finish(rule_->divisor, dtype(), out);
  }

 private:
  std::shared_ptr<const SumRule> rule_;
  std::vector<std::unique_ptr<ArrayReader>> readers_;
  mutable Spares<WeightedSum> sums_;
};

}  // namespace

Array sum_of(std::vector<Array> arrays, std::shared_ptr<const SumRule> rule, DType to) {
  const std::vector<std::int64_t> shape = arrays.front().shape;
  return computed_array(to, shape, [arrays = std::move(arrays), rule = std::move(rule), to] {
    return std::make_shared<SumSource>(arrays, rule, to);
  });
}

}  // namespace fsdp::formats::arrays
