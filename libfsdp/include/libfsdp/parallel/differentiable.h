// SPDX-License-Identifier: Apache-2.0
// Differentiable collectives on activations.
//
// Note [pairs]: the functions of a pair are each other's backward: all_reduce and copy, all_gather
// and reduce_scatter, gather and split, all_to_all and itself.  The input of `copy` and the results
// of `all_reduce` and `gather` are the same on every rank, and so are their gradients.  The results
// of `copy` and `all_gather` have a different gradient on each rank, and backward sums these
// gradients.
//
// All are collective over `group`: every rank must call them in the same order, in forward and so
// in backward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/process_group.h"

namespace fsdp::differentiable {

using Group = std::shared_ptr<ProcessGroup>;

// Returns the sum of all ranks' tensors.
at::Tensor all_reduce(const at::Tensor& tensor, const Group& group);
// Returns the tensor; its gradient is the sum of all ranks' gradients.
at::Tensor copy(const at::Tensor& tensor, const Group& group);

// Both return the ranks' parts joined along `dim`.  The parts have the sizes that torch.chunk gives
// for a dimension of `size`; default: equal sizes.
at::Tensor all_gather(const at::Tensor& part, std::int64_t dim, const Group& group,
                      std::optional<std::int64_t> size = {});
at::Tensor gather(const at::Tensor& part, std::int64_t dim, const Group& group,
                  std::optional<std::int64_t> size = {});

// Returns this rank's part of the sum, along `dim`.
at::Tensor reduce_scatter(const at::Tensor& tensor, std::int64_t dim, const Group& group);
// Returns this rank's part, along `dim`.
at::Tensor split(const at::Tensor& tensor, std::int64_t dim, const Group& group);

// Sends rows to each rank, in order: [sum(sent), ...] -> [sum(received), ...].
// Requires: what rank a sends to b is what b receives from a.
at::Tensor all_to_all(const at::Tensor& rows, const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received, const Group& group);

}  // namespace fsdp::differentiable
