// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/low_rank_update.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/low_rank.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

class UpdatedSource : public ComputedSource {
 public:
  UpdatedSource(const Array& weight, const std::vector<LowRankTerms>& terms, DType to)
      : ComputedSource(to, numel_of(weight)), weight_(opened(weight)) {
    const std::uint64_t experts = terms.front().experts;
    each_ = numel() / experts;
    std::vector<std::vector<LowRankUpdate>> updates(experts);
    for (const LowRankTerms& term : terms) add(term, updates);
    for (const auto& own : updates) kernels_.push_back(low_rank_kernel(weight.dtype, own, each_));
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    const Scratch elements;
    const Scratch numbers;
    const auto from =
        elements.first(out.size() / item_bytes(dtype()) * item_bytes(weight_->dtype()));
    weight_->read(first, from);
    for (std::uint64_t done = 0, count = 0; !out.empty(); done += count, first += count) {
      count = std::min<std::uint64_t>(out.size() / item_bytes(dtype()), each_ - first % each_);
      const std::uint64_t item = item_bytes(weight_->dtype());
      kernels_[first / each_]->apply(first % each_, from.subspan(done * item, count * item),
                                     numbers.bytes(), dtype(),
                                     out.first(count * item_bytes(dtype())));
      out = out.subspan(count * item_bytes(dtype()));
    }
  }

 private:
  // Adds the update of each expert.
  void add(const LowRankTerms& term, std::vector<std::vector<LowRankUpdate>>& updates) {
    const std::vector<std::byte> a = elements_of(term.a, term.a.dtype);
    const std::vector<std::byte> b = elements_of(term.b, term.b.dtype);
    const std::uint64_t experts = term.experts;
    const std::size_t item = item_bytes(term.b.dtype);
    for (std::uint64_t e = 0; e < experts; ++e) {
      ThinMatrix own_a{term.a.dtype, {}, term.turned};
      const auto part = std::span(a).subspan(e * a.size() / experts, a.size() / experts);
      own_a.elements.assign(part.begin(), part.end());
      ThinMatrix own_b{term.b.dtype, {}, term.turned};
      for (std::size_t at = e * item; at < b.size(); at += experts * item) {
        const auto one = std::span(b).subspan(at, experts == 1 ? b.size() : item);
        own_b.elements.insert(own_b.elements.end(), one.begin(), one.end());
        if (experts == 1) break;
      }
      LowRankUpdate update;
      update.rank = static_cast<std::uint64_t>(term.a.shape[0]) / experts;
      update.scale = term.scale;
      update.left = std::move(term.turned ? own_a : own_b);
      update.right = std::move(term.turned ? own_b : own_a);
      updates[e].push_back(std::move(update));
    }
  }

  std::unique_ptr<ArrayReader> weight_;
  std::uint64_t each_;  // elements of an expert
  std::vector<std::unique_ptr<LowRankKernel>> kernels_;
};

}  // namespace

Array with_low_rank_updates(const Array& weight, std::vector<LowRankTerms> terms, DType to) {
  return computed_array(to, weight.shape, [weight, terms = std::move(terms), to] {
    return std::make_shared<UpdatedSource>(weight, terms, to);
  });
}

Array with_low_rank_update(const Array& weight, LowRankTerms terms) {
  for (const Array* const array : {&weight, &std::as_const(terms.a), &std::as_const(terms.b)}) {
    if (is_floating(array->dtype)) continue;
    throw Error(ErrorCode::kDtype,
                cat("low_rank takes floating tensors, not ", torch_name(array->dtype)));
  }
  const auto& w = weight.shape;
  const auto& a = terms.a.shape;
  const auto& b = terms.b.shape;
  const bool matrices = w.size() == 2 && a.size() == 2 && b.size() == 2;
  if (!matrices || a[0] != b[1] || a[0] == 0 || b[0] != w[terms.turned ? 1 : 0] ||
      a[1] != w[terms.turned ? 0 : 1]) {
    throw Error(ErrorCode::kShape,
                cat("low_rank takes W ", terms.turned ? "[in, out]" : "[out, in]",
                    ", A [rank, in] and B [out, rank], not ", shape_text(w), ", ", shape_text(a),
                    " and ", shape_text(b)));
  }
  if (weight.parts.empty()) return weight;
  return with_low_rank_updates(weight, {std::move(terms)}, weight.dtype);
}

}  // namespace fsdp::formats::arrays
