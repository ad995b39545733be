// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/parallel/differentiable.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp::differentiable {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Change = std::function<at::Tensor(const at::Tensor&)>;

constexpr const char* kBackward = "backward";

struct HeldChange : torch::CustomClassHolder {
  explicit HeldChange(Change held) : change(std::move(held)) {}
  const Change change;
};

struct Function : torch::autograd::Function<Function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Change& forward, const Change& backward) {
    context->saved_data[kBackward] =
        c10::IValue::make_capsule(c10::make_intrusive<HeldChange>(backward));
    return forward(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<HeldChange>(
        context->saved_data.at(kBackward).toCapsule());
    return {held->change(gradients.front()), {}, {}};
  }
};

std::int64_t share_of(std::int64_t size, const Group& group) {
  return (size + group->size() - 1) / group->size();
}

std::int64_t checked_dim(const at::Tensor& tensor, std::int64_t dim) {
  return c10::maybe_wrap_dim(dim, tensor.dim());
}

at::Tensor summed(const at::Tensor& tensor, const Group& group) {
  at::Tensor result = tensor.clone(at::MemoryFormat::Contiguous);
  internal::all_reduce(group, result, internal::ReduceOp::kSum, "all-reduce of activations").wait();
  return result;
}

at::Tensor joined(const at::Tensor& part, std::int64_t dim, const Group& group, std::int64_t size) {
  const std::int64_t share = share_of(size, group);
  const std::int64_t own =
      std::min(size, (group->rank() + 1) * share) - std::min(size, group->rank() * share);
  FSDP_CHECK(part.size(dim) == own, "gathering activations: this rank's part of ", size,
             " along dimension ", dim, " is ", own, ", found ", part.sizes());
  return internal::gather_along(part, dim, size, group, "all-gather of activations");
}

at::Tensor own_part(const at::Tensor& tensor, std::int64_t dim, const Group& group) {
  const std::int64_t size = tensor.size(dim);
  const std::int64_t share = share_of(size, group);
  const std::int64_t first = std::min(size, group->rank() * share);
  return tensor.narrow(dim, first, std::min(size, first + share) - first).contiguous();
}

at::Tensor scattered(const at::Tensor& tensor, std::int64_t dim, const Group& group) {
  const std::int64_t size = tensor.size(dim);
  const std::int64_t share = share_of(size, group);
  const at::Tensor input = internal::padded_along(tensor, dim, share * group->size());
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape[0] = share;
  const at::Tensor result = at::empty(shape, input.options());
  internal::reduce_scatter(group, result, input, "reduce-scatter of activations").wait();
  const std::int64_t first = std::min(size, group->rank() * share);
  return result.narrow(0, 0, std::min(size, first + share) - first).transpose(0, dim).contiguous();
}

// `backward`: what the gradient of the whole becomes.
template <typename Backward>
at::Tensor gathered(const at::Tensor& part, std::int64_t dim, const Group& group,
                    std::optional<std::int64_t> size, Backward* backward) {
  if (group->size() == 1) return part;
  const std::int64_t along = checked_dim(part, dim);
  const std::int64_t whole = size.value_or(part.size(along) * group->size());
  return Function::apply(
      part, [=](const at::Tensor& input) { return joined(input, along, group, whole); },
      [=](const at::Tensor& gradient) { return backward(gradient, along, group); });
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, const Group& group) {
  if (group->size() == 1) return tensor;
  return Function::apply(
      tensor, [group](const at::Tensor& input) { return summed(input, group); },
      [group](const at::Tensor& gradient) { return copy(gradient, group); });
}

at::Tensor copy(const at::Tensor& tensor, const Group& group) {
  if (group->size() == 1) return tensor;
  return Function::apply(
      tensor, [](const at::Tensor& input) { return input.view_as(input); },
      [group](const at::Tensor& gradient) { return all_reduce(gradient, group); });
}

at::Tensor all_gather(const at::Tensor& part, std::int64_t dim, const Group& group,
                      std::optional<std::int64_t> size) {
  return gathered(part, dim, group, size, reduce_scatter);
}

at::Tensor gather(const at::Tensor& part, std::int64_t dim, const Group& group,
                  std::optional<std::int64_t> size) {
  return gathered(part, dim, group, size, split);
}

at::Tensor reduce_scatter(const at::Tensor& tensor, std::int64_t dim, const Group& group) {
  if (group->size() == 1) return tensor;
  const std::int64_t along = checked_dim(tensor, dim);
  const std::int64_t whole = tensor.size(along);
  return Function::apply(
      tensor, [=](const at::Tensor& input) { return scattered(input, along, group); },
      [=](const at::Tensor& gradient) { return all_gather(gradient, along, group, whole); });
}

at::Tensor split(const at::Tensor& tensor, std::int64_t dim, const Group& group) {
  if (group->size() == 1) return tensor;
  const std::int64_t along = checked_dim(tensor, dim);
  const std::int64_t whole = tensor.size(along);
  return Function::apply(
      tensor, [=](const at::Tensor& input) { return own_part(input, along, group); },
      [=](const at::Tensor& gradient) { return gather(gradient, along, group, whole); });
}

at::Tensor all_to_all(const at::Tensor& rows, const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received, const Group& group) {
  if (group->size() == 1) return rows;
  const auto change = [group](const std::vector<std::int64_t>& out,
                              const std::vector<std::int64_t>& in) {
    return [=](const at::Tensor& input) {
      std::vector<std::int64_t> shape = input.sizes().vec();
      shape[0] = 0;
      for (const std::int64_t count : in) shape[0] += count;
      at::Tensor result = at::empty(shape, input.options());
      internal::all_to_all(group, result, in, input.contiguous(), out, "all-to-all of activations")
          .wait();
      return result;
    };
  };
  return Function::apply(rows, change(sent, received), [=](const at::Tensor& gradient) {
    return all_to_all(gradient, received, sent, group);
  });
}

}  // namespace fsdp::differentiable
