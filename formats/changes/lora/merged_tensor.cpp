// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/merged_tensor.h"

#include <algorithm>

#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/low_rank_update.h"
#include "formats/changes/arrays/rows.h"

namespace fsdp::formats {

arrays::Array merged_tensor(std::span<const std::shared_ptr<arrays::ArraySource>> sources,
                            const MergedTensor& tensor, DType to) {
  using arrays::Array;
  const auto operand = [&](std::size_t adapter, std::size_t number) {
    return sources[adapter + 1]->array(number);
  };
  const auto terms_of = [&](const LoraStep& step) -> arrays::LowRankTerms {
    const Array b = operand(step.adapter, step.b);
    if (step.kind == LoraStep::Kind::kBias)
      return {arrays::constant_array(DType::kFloat32, {1, 1}, 1), b, step.scale};
    return {operand(step.adapter, step.a), b, step.scale, step.turned,
            std::max<std::uint64_t>(step.experts, 1)};
  };
  const auto is_plain = [](const LoraStep& step) {
    return step.kind != LoraStep::Kind::kRows && step.experts == 0;
  };
  Array out;
  if (tensor.replacement) {
    // Outputs tell storages by the names of files, which may be those of the base's.
    out = operand(tensor.replacement->first, tensor.replacement->second);
    out = arrays::gathered(out, out.shape);
  } else {
    out = sources[0]->array(*tensor.base);
  }
  const std::vector<LoraStep>& steps = tensor.steps;
  for (std::size_t i = 0; !out.parts.empty() && i < steps.size();) {
    const LoraStep& step = steps[i++];
    const DType real = out.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    if (step.kind == LoraStep::Kind::kRows) {
      out = arrays::with_rows(out, step.rows, operand(step.adapter, step.b),
                              i == steps.size() ? to : real);
      continue;
    }
    std::vector<arrays::LowRankTerms> terms = {terms_of(step)};
    while (is_plain(step) && !steps[i - 1].magnitude && i < steps.size() && is_plain(steps[i]))
      terms.push_back(terms_of(steps[i++]));
    const LoraStep& last = steps[i - 1];
    out = arrays::with_low_rank_updates(out, std::move(terms),
                                        i == steps.size() && !last.magnitude ? to : real);
    if (last.magnitude)
      out = arrays::with_lengths(out, operand(last.adapter, *last.magnitude), last.turned);
  }
  return arrays::with_step(out, {arrays::Arithmetic::kCast, to, 0});
}

}  // namespace fsdp::formats
