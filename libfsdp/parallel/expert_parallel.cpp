// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/parallel/expert_parallel.h"

#include <cmath>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/init.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/parallel/differentiable.h"

namespace fsdp {
namespace {

std::vector<std::int64_t> numbers_in(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  const auto* const first = host.const_data_ptr<std::int64_t>();
  return {first, first + host.numel()};
}

std::int64_t experts_of_a_rank(const ParallelExpertsOptions& options, const DeviceMesh& mesh) {
  const int ranks = mesh.group()->size();
  FSDP_CHECK(options.experts > 0 && options.experts % ranks == 0, options.experts,
             " experts cannot be divided evenly over the ", ranks, " ranks of '", mesh.name(0),
             "'");
  return options.experts / ranks;
}

}  // namespace

ParallelExpertsImpl::ParallelExpertsImpl(ParallelExpertsOptions given, const DeviceMesh& mesh)
    : options(given), mesh_(mesh) {
  const std::int64_t own = experts_of_a_rank(options, mesh_);
  w1 = register_parameter("w1", at::empty({own, options.hidden, options.features}));
  w2 = register_parameter("w2", at::empty({own, options.features, options.hidden}));
  w3 = register_parameter("w3", at::empty({own, options.hidden, options.features}));
  if (!w1.is_meta()) ParallelExpertsImpl::reset_parameters();
}

PlacedParameter ParallelExpertsImpl::placed(const std::string& name) const {
  const std::int64_t rows = name == "w2" ? options.features : options.hidden;
  const std::int64_t columns = name == "w2" ? options.hidden : options.features;
  return {{options.experts, rows, columns}, {{mesh_, 0}}};
}

void ParallelExpertsImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const std::int64_t own = w1.size(0);
  for (const at::Tensor& weight : {w1, w2, w3}) {
    // Draws one expert after the other, so that memory for all is never needed.
    const at::Tensor expert = at::empty(weight.sizes().slice(1), weight.options());
    for (std::int64_t i = 0; i < options.experts; ++i) {
      torch::nn::init::kaiming_uniform_(expert, std::sqrt(5.0));
      if (i / own == mesh_.coordinate(0)) weight[i % own].copy_(expert);
    }
  }
}

at::Tensor ParallelExpertsImpl::compute(const at::Tensor& rows,
                                        const std::vector<std::int64_t>& counts) const {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  // An expert without tokens takes part, because every rank must use the parameters.
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto expert = static_cast<std::int64_t>(i);
    const at::Tensor x = rows.narrow(0, first, counts[i]);
    const at::Tensor hidden = at::silu(at::linear(x, w1[expert])) * at::linear(x, w3[expert]);
    results.push_back(at::linear(hidden, w2[expert]));
    first += counts[i];
  }
  return at::cat(results);
}

at::Tensor ParallelExpertsImpl::forward(const at::Tensor& tokens, const at::Tensor& choices,
                                        const at::Tensor& weights) {
  FSDP_CHECK(tokens.dim() == 2 && choices.dim() == 2 && choices.sizes() == weights.sizes() &&
                 choices.size(0) == tokens.size(0),
             "experts: expected tokens [T, features], and choices and weights [T, K], found ",
             tokens.sizes(), ", ", choices.sizes(), " and ", weights.sizes());
  const auto& group = mesh_.group();
  const std::int64_t own = options.experts / group->size();
  const at::Tensor flat = choices.reshape({-1});
  const at::Tensor order = at::argsort(flat, /*stable=*/true, 0, false);
  const at::Tensor counted = at::bincount(flat, {}, options.experts);
  FSDP_CHECK(counted.size(0) == options.experts, "experts: expected choices below ",
             options.experts, ", found ", counted.size(0) - 1);
  // counts[r][e]: rows that rank r sends to this rank's expert e.
  at::Tensor received_counts = counted;
  if (group->size() > 1) {
    received_counts = at::empty_like(counted);
    internal::all_to_all(group, received_counts, counted, "all-to-all of numbers of tokens").wait();
  }
  const at::Tensor counts = received_counts.view({group->size(), own});
  const auto sent = numbers_in(counted.view({group->size(), own}).sum(1));
  const auto received = numbers_in(counts.sum(1));

  const at::Tensor rows = tokens.index_select(0, order.div(choices.size(1), "floor"));
  const at::Tensor arrived = differentiable::all_to_all(rows, sent, received, group);
  // Rows came rank by rank; each expert takes its rows together.
  const at::Tensor expert_of_row = at::arange(own, counts.options())
                                       .repeat({group->size()})
                                       .repeat_interleave(counts.reshape({-1}));
  const at::Tensor by_expert = at::argsort(expert_of_row, /*stable=*/true, 0, false);
  const at::Tensor results = compute(arrived.index_select(0, by_expert), numbers_in(counts.sum(0)));
  const at::Tensor by_rank = results.index_select(0, at::argsort(by_expert));
  const at::Tensor back = differentiable::all_to_all(by_rank, received, sent, group);
  const at::Tensor in_order = back.index_select(0, at::argsort(order));
  return (in_order.view({tokens.size(0), choices.size(1), -1}) * weights.unsqueeze(-1)).sum(1);
}

}  // namespace fsdp
