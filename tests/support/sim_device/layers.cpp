// SPDX-License-Identifier: Apache-2.0
// Operators for which LibTorch looks for a device's own kernel, where the CPU has another one or
// none: convolutions, the fused cells of LSTM and GRU, dropout, and the choice of an attention.
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/library.h>

#include "tests/support/sim_device/host_alias.h"
#include "tests/support/sim_device/recording.h"

namespace fsdp::test::sim {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Sizes = c10::IntArrayRef;

Tensor or_undefined(const MaybeTensor& tensor) {
  return tensor.value_or(Tensor());
}

MaybeTensor or_none(const Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

// ---- convolutions

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, Sizes stride,
                   Sizes padding, Sizes dilation, bool transposed, Sizes output_padding,
                   std::int64_t groups) {
  return run_kernel(
             "aten::convolution", {input, weight, or_undefined(bias)},
             [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
              output_padding = output_padding.vec(), groups](const Tensors& in) -> Tensors {
               return {at::convolution(in[0], in[1], or_none(in[2]), stride, padding, dilation,
                                       transposed, output_padding, groups)};
             })
      .front();
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& weight, Sizes stride,
                                                        Sizes padding, Sizes dilation,
                                                        bool transposed, Sizes output_padding,
                                                        std::int64_t groups,
                                                        std::array<bool, 3> mask) {
  const Tensors grads = run_kernel(
      "aten::convolution_backward", {grad, input, weight},
      [bias_sizes = std::vector<std::int64_t>{grad.size(1)}, stride = stride.vec(),
       padding = padding.vec(), dilation = dilation.vec(), transposed,
       output_padding = output_padding.vec(), groups, mask](const Tensors& in) -> Tensors {
        auto [of_input, of_weight, of_bias] =
            at::convolution_backward(in[0], in[1], in[2], bias_sizes, stride, padding, dilation,
                                     transposed, output_padding, groups, mask);
        return {of_input, of_weight, of_bias};
      });
  return {grads[0], grads[1], grads[2]};
}

// ---- cells: names of gates as in LibTorch's documentation of LSTM and GRU

Tensor with_bias(const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

// Returns the new hidden and cell state, and the gates for the backward [N, 4H].
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const Tensors out = run_kernel(
      "aten::_thnn_fused_lstm_cell",
      {input_gates, hidden_gates, cell, or_undefined(input_bias), or_undefined(hidden_bias)},
      [](const Tensors& in) -> Tensors {
        const Tensors gates = (with_bias(in[0], in[3]) + with_bias(in[1], in[4])).chunk(4, 1);
        const Tensor i = gates[0].sigmoid();
        const Tensor f = gates[1].sigmoid();
        const Tensor g = gates[2].tanh();
        const Tensor o = gates[3].sigmoid();
        const Tensor next = f * in[2] + i * g;
        return {o * next.tanh(), next, at::cat({i, f, g, o}, 1)};
      });
  return {out[0], out[1], out[2]};
}

// Returns the gradients of the gates, of the earlier cell state, and of a bias.
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hidden,
                                                      const MaybeTensor& grad_cell,
                                                      const Tensor& cell, const Tensor& next,
                                                      const Tensor& workspace, bool has_bias) {
  const Tensors out =
      run_kernel("aten::_thnn_fused_lstm_cell_backward",
                 {cell, next, workspace, or_undefined(grad_hidden), or_undefined(grad_cell)},
                 [has_bias](const Tensors& in) -> Tensors {
                   const Tensors gates = in[2].chunk(4, 1);
                   const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
                   const Tensor of_hidden = in[3].defined() ? in[3] : at::zeros_like(in[0]);
                   const Tensor tanh_next = in[1].tanh();
                   Tensor of_next = of_hidden * o * (1 - tanh_next * tanh_next);
                   if (in[4].defined()) of_next = of_next + in[4];
                   const Tensor of_gates =
                       at::cat({of_next * g * i * (1 - i), of_next * in[0] * f * (1 - f),
                                of_next * i * (1 - g * g), of_hidden * tanh_next * o * (1 - o)},
                               1);
                   return {of_gates, of_next * f, has_bias ? of_gates.sum(0) : Tensor()};
                 });
  return {out[0], out[1], out[2]};
}

// Returns the new hidden state, and what the backward needs [N, 5H]: r, z, n, the earlier hidden
// state, and the hidden part of n.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hidden, const MaybeTensor& input_bias,
                                    const MaybeTensor& hidden_bias) {
  const Tensors out = run_kernel(
      "aten::_thnn_fused_gru_cell",
      {input_gates, hidden_gates, hidden, or_undefined(input_bias), or_undefined(hidden_bias)},
      [](const Tensors& in) -> Tensors {
        const Tensors of_input = with_bias(in[0], in[3]).chunk(3, 1);
        const Tensors of_hidden = with_bias(in[1], in[4]).chunk(3, 1);
        const Tensor r = (of_input[0] + of_hidden[0]).sigmoid();
        const Tensor z = (of_input[1] + of_hidden[1]).sigmoid();
        const Tensor n = (of_input[2] + r * of_hidden[2]).tanh();
        return {n + z * (in[2] - n), at::cat({r, z, n, in[2], of_hidden[2]}, 1)};
      });
  return {out[0], out[1]};
}

// Returns the gradients of both gates, of the earlier hidden state, and of both biases.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hidden,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const Tensors out =
      run_kernel("aten::_thnn_fused_gru_cell_backward", {grad_hidden, workspace},
                 [has_bias](const Tensors& in) -> Tensors {
                   const Tensors kept = in[1].chunk(5, 1);
                   const Tensor &r = kept[0], &z = kept[1], &n = kept[2];
                   const Tensor of_z = in[0] * (kept[3] - n) * z * (1 - z);
                   const Tensor of_n = in[0] * (1 - z) * (1 - n * n);
                   const Tensor of_r = of_n * kept[4] * r * (1 - r);
                   const Tensor of_input = at::cat({of_r, of_z, of_n}, 1);
                   const Tensor of_hidden = at::cat({of_r, of_z, of_n * r}, 1);
                   return {of_input, of_hidden, in[0] * z, has_bias ? of_input.sum(0) : Tensor(),
                           has_bias ? of_hidden.sum(0) : Tensor()};
                 });
  return {out[0], out[1], out[2], out[3], out[4]};
}

// ---- dropout

// Draws from the generator of the CPU as LibTorch's own dropout does.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double rate, std::optional<bool> training) {
  at::Generator generator = at::globalContext().defaultGenerator(input.device());
  const bool draws = training.value_or(true);
  if (draws) record_draws(input.device().index(), generator);
  const Tensors out =
      run_kernel("aten::native_dropout", {input}, [rate, generator, draws](const Tensors& in) {
        Tensor kept = at::ones_like(in[0], in[0].options().dtype(at::kBool));
        if (!draws) return Tensors{in[0].clone(), kept};
        kept.bernoulli_(1 - rate, generator);
        return Tensors{in[0] * kept * (rate == 1 ? 0 : 1 / (1 - rate)), kept};
      });
  return {out[0], out[1]};
}

// ---- attention

// Returns the kind of sdp::SDPBackend that consists of plain operators.
std::int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const MaybeTensor&,
                              double, bool, std::optional<double>, bool) {
  constexpr std::int64_t kMath = 0;
  return kMath;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  library.impl("native_dropout", &dropout);
  library.impl("_fused_sdp_choice", &choose_attention);
}

}  // namespace
}  // namespace fsdp::test::sim
