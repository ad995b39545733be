// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/sum_source.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Elements added up at a time: reads are long enough for a disk, and the sums stay in a core's
// second-level cache from the first input to the last.
constexpr std::uint64_t kBlockNumel = 64U << 10U;

}  // namespace

SumSource::SumSource(const SumRule& rule, Spares<SumBuffers>& buffers,
                     std::vector<std::unique_ptr<InputReader>> inputs, DType to,
                     std::uint64_t numel)
    : rule_(rule),
      buffers_(buffers),
      inputs_(std::move(inputs)),
      to_(to),
      numel_(numel),
      item_(item_bytes(to)) {}

void SumSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset % item_ != 0 || out.size() % item_ != 0 || offset > size() ||
      out.size() > size() - offset) {
    throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", size(),
                                           " are not whole elements of a sum"));
  }
  const auto buffers = buffers_.take(rule_.accumulator);
  std::uint64_t first = offset / item_;
  while (!out.empty()) {
    const std::uint64_t count = std::min(kBlockNumel, out.size() / item_);
    buffers->sum.begin(count);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::uint64_t bytes = count * item_bytes(inputs_[i]->dtype());
      if (buffers->elements.size() < bytes) {
        buffers->elements.resize(bytes);
        buffers->scratch.resize(bytes);
      }
      const auto elements = std::span(buffers->elements).first(bytes);
      inputs_[i]->read(first, elements, buffers->scratch);
      buffers->sum.add(inputs_[i]->dtype(), elements, rule_.weights[i]);
    }
    buffers->sum.finish(rule_.divisor, to_, out.first(count * item_));
    out = out.subspan(count * item_);
    first += count;
  }
}

}  // namespace fsdp::formats
