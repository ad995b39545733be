// SPDX-License-Identifier: Apache-2.0
#include "formats/arithmetic/sum_source.h"

#include <algorithm>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// Elements added up at a time: reads are long enough for a disk, and the sums stay in a core's
// second-level cache from the first input to the last.
constexpr std::uint64_t kBlockNumel = 64U << 10U;

}  // namespace

SumSource::SumSource(const SumRule& rule, std::vector<std::unique_ptr<InputReader>> inputs,
                     DType to, std::uint64_t numel)
    : rule_(rule), inputs_(std::move(inputs)), to_(to), numel_(numel), item_(item_bytes(to)) {}

void SumSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset % item_ != 0 || out.size() % item_ != 0 || offset > size() ||
      out.size() > size() - offset) {
    throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", size(),
                                           " are no whole elements of a sum"));
  }
  auto workspace = take();
  std::uint64_t first = offset / item_;
  while (!out.empty()) {
    const std::uint64_t count = std::min(kBlockNumel, out.size() / item_);
    workspace->sum.begin(count);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::uint64_t bytes = count * item_bytes(inputs_[i]->dtype());
      if (workspace->elements.size() < bytes) {
        workspace->elements.resize(bytes);
        workspace->scratch.resize(bytes);
      }
      const auto elements = std::span(workspace->elements).first(bytes);
      inputs_[i]->read(first, elements, workspace->scratch);
      workspace->sum.add(inputs_[i]->dtype(), elements, rule_.weights[i]);
    }
    workspace->sum.finish(rule_.divisor, to_, out.first(count * item_));
    out = out.subspan(count * item_);
    first += count;
  }
  give_back(std::move(workspace));
}

std::unique_ptr<SumSource::Workspace> SumSource::take() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Workspace>(rule_.accumulator);
  auto workspace = std::move(idle_.back());
  idle_.pop_back();
  return workspace;
}

void SumSource::give_back(std::unique_ptr<Workspace> workspace) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(workspace));
}

}  // namespace fsdp::formats
