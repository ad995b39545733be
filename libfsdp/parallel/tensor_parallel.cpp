// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/parallel/tensor_parallel.h"

#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <torch/nn/init.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/parallel/differentiable.h"

namespace fsdp {
namespace {

// As torch::nn::Linear.
void fill_linear_weight(const at::Tensor& weight) {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
}

void fill_linear_bias(const at::Tensor& bias, std::int64_t in_features) {
  const double bound = in_features > 0 ? 1 / std::sqrt(static_cast<double>(in_features)) : 0;
  torch::nn::init::uniform_(bias, -bound, bound);
}

// Throws alike on every rank for a token outside the table, which would be in no rank's part.
void check_tokens(const at::Tensor& tokens, std::int64_t size, const char* what) {
  if (tokens.numel() == 0 || tokens.is_meta()) return;
  const auto [least, most] = at::aminmax(tokens);
  FSDP_CHECK(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < size, what,
             ": expected numbers from 0 to ", size - 1, ", found ", least.item<std::int64_t>(),
             " to ", most.item<std::int64_t>());
}

}  // namespace

PlacedParameter ParallelLayer::placed(const std::string& name) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const auto& part) { return part.first == name; });
  return found == parts_.end() ? PlacedParameter() : found->second;
}

at::Tensor ParallelLayer::part(const std::string& name, std::vector<std::int64_t> shape, int dim) {
  PlacedParameter parameter{std::move(shape), {{mesh_, dim}}};
  const ShardLayout layout = layout_of(parameter);
  parts_.emplace_back(name, std::move(parameter));
  return at::empty(layout.shape);
}

void ParallelLayer::fill_part(const std::string& name, const at::Tensor& own,
                              const std::function<void(const at::Tensor& whole)>& fill) const {
  const at::NoGradGuard no_grad;
  const PlacedParameter parameter = placed(name);
  const at::Tensor whole = at::empty(parameter.shape, own.options().requires_grad(false));
  fill(whole);
  own.copy_(internal::block_of(whole, layout_of(parameter)));
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(ParallelLinearOptions given,
                                                   const DeviceMesh& mesh)
    : ParallelLayer(mesh), options(given) {
  weight =
      register_parameter("weight", part("weight", {options.out_features, options.in_features}, 0));
  bias = options.bias ? register_parameter("bias", part("bias", {options.out_features}, 0))
                      : register_parameter("bias", {}, /*requires_grad=*/false);
  if (!weight.is_meta()) ColumnParallelLinearImpl::reset_parameters();
}

void ColumnParallelLinearImpl::reset_parameters() {
  fill_part("weight", weight, fill_linear_weight);
  if (!bias.defined()) return;
  fill_part("bias", bias,
            [&](const at::Tensor& whole) { fill_linear_bias(whole, options.in_features); });
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  const auto& group = mesh().group();
  at::Tensor whole = input;
  if (!options.prepared_input) {
    whole = options.sequence_dim ? differentiable::all_gather(input, *options.sequence_dim, group)
                                 : differentiable::copy(input, group);
  }
  at::Tensor result = at::linear(whole, weight, bias);
  if (!options.whole_features) return result;
  return differentiable::gather(result, -1, group, options.out_features);
}

RowParallelLinearImpl::RowParallelLinearImpl(ParallelLinearOptions given, const DeviceMesh& mesh)
    : ParallelLayer(mesh), options(given) {
  weight =
      register_parameter("weight", part("weight", {options.out_features, options.in_features}, 1));
  bias = options.bias ? register_parameter("bias", at::empty({options.out_features}))
                      : register_parameter("bias", {}, /*requires_grad=*/false);
  if (!weight.is_meta()) RowParallelLinearImpl::reset_parameters();
}

void RowParallelLinearImpl::reset_parameters() {
  fill_part("weight", weight, fill_linear_weight);
  if (bias.defined()) fill_linear_bias(bias, options.in_features);
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  const auto& group = mesh().group();
  const at::Tensor own = options.whole_features ? differentiable::split(input, -1, group) : input;
  const at::Tensor product = at::linear(own, weight);
  if (options.sequence_dim) {
    const at::Tensor part = differentiable::reduce_scatter(product, *options.sequence_dim, group);
    return bias.defined() ? part + differentiable::copy(bias, group) : part;
  }
  const at::Tensor sum = differentiable::all_reduce(product, group);
  return bias.defined() ? sum + bias : sum;
}

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions given, const DeviceMesh& mesh)
    : ParallelLayer(mesh), options(given) {
  weight =
      register_parameter("weight", part("weight", {options.num_embeddings, options.embedding_dim},
                                        options.cuts_vocabulary ? 0 : 1));
  if (!weight.is_meta()) ParallelEmbeddingImpl::reset_parameters();
}

void ParallelEmbeddingImpl::reset_parameters() {
  fill_part("weight", weight, [](const at::Tensor& whole) { torch::nn::init::normal_(whole); });
}

at::Tensor ParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  const auto& group = mesh().group();
  check_tokens(tokens, options.num_embeddings, "embedding");
  if (!options.cuts_vocabulary) {
    const at::Tensor features = at::embedding(weight, tokens);
    const at::Tensor whole = differentiable::gather(features, -1, group, options.embedding_dim);
    return options.sequence_dim ? differentiable::split(whole, *options.sequence_dim, group)
                                : whole;
  }
  const ShardLayout layout = layout_of(placed("weight"));
  const at::Tensor own = tokens - layout.offset[0];
  const at::Tensor elsewhere = own.lt(0).logical_or(own.ge(layout.shape[0]));
  // A rank without rows has nothing to look up, but must have a gradient.
  const at::Tensor table =
      layout.shape[0] == 0 ? at::constant_pad_nd(weight, {0, 0, 0, 1}) : weight;
  const at::Tensor rows =
      at::embedding(table, own.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0);
  return options.sequence_dim ? differentiable::reduce_scatter(rows, *options.sequence_dim, group)
                              : differentiable::all_reduce(rows, group);
}

SequenceParallelNormImpl::SequenceParallelNormImpl(SequenceParallelNormOptions given,
                                                   const DeviceMesh& mesh)
    : options(given), mesh_(mesh) {
  FSDP_CHECK(!options.rms || !options.bias, "an RMSNorm has no bias");
  mesh_.group();
  weight = register_parameter("weight", at::empty({options.features}));
  bias = options.bias ? register_parameter("bias", at::empty({options.features}))
                      : register_parameter("bias", {}, /*requires_grad=*/false);
  if (!weight.is_meta()) SequenceParallelNormImpl::reset_parameters();
}

void SequenceParallelNormImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

at::Tensor SequenceParallelNormImpl::forward(const at::Tensor& input) {
  const auto& group = mesh_.group();
  const at::Tensor scale = differentiable::copy(weight, group);
  if (options.rms) return at::rms_norm(input, {options.features}, scale, options.eps);
  const at::Tensor shift = bias.defined() ? differentiable::copy(bias, group) : at::Tensor();
  return at::layer_norm(input, {options.features}, scale, shift, options.eps);
}

at::Tensor cross_entropy_of_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  std::int64_t vocabulary, const DeviceMesh& mesh,
                                  std::int64_t ignore_index) {
  const auto& group = mesh.group();
  const at::Tensor ignored = targets.eq(ignore_index);
  const at::Tensor counted = targets.masked_fill(ignored, 0);
  check_tokens(counted, vocabulary, "cross entropy");
  const ShardLayout layout = layout_of({{vocabulary}, {{mesh, 0}}});
  FSDP_CHECK(logits.dim() == 2 && logits.size(1) == layout.shape[0],
             "cross entropy: this rank's part of ", vocabulary, " logits is [N, ", layout.shape[0],
             "], found ", logits.sizes());
  const at::Tensor values =
      logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor most = at::full({values.size(0)}, -INFINITY, values.options());
  if (values.size(1) > 0) most = values.detach().amax(1);
  if (group->size() > 1)
    internal::all_reduce(group, most, internal::ReduceOp::kMax, "all-reduce of logits").wait();
  const at::Tensor below = values - most.unsqueeze(1);
  const at::Tensor sum = differentiable::all_reduce(below.exp().sum(1), group);
  const at::Tensor own = counted - layout.offset[0];
  const at::Tensor elsewhere = own.lt(0).logical_or(own.ge(layout.shape[0]));
  // A rank without logits must take part in the sum, and in its backward.
  const at::Tensor chosen =
      values.size(1) > 0 ? below.gather(1, own.masked_fill(elsewhere, 0).unsqueeze(1)).squeeze(1)
                         : below.sum(1);
  const at::Tensor target = differentiable::all_reduce(chosen.masked_fill(elsewhere, 0), group);
  const at::Tensor losses = (sum.log() - target).masked_fill(ignored, 0);
  return losses.sum() / ignored.logical_not().sum();
}

}  // namespace fsdp
