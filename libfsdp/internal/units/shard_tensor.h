// SPDX-License-Identifier: Apache-2.0
// Makes the tensor for an optimizer: every write moves its version, even through data().
//
// torch::optim writes through parameter.data(), which has a separate version counter in an ordinary
// tensor: a step between a forward and its backward would go unnoticed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace fsdp::internal {

// Returns a tensor in the memory of `view`, with one version counter for itself and its data().
// `whole`: the shape of the tensor of which it is a part.  `is_flat`: it is of several; `whole` is
// empty.
at::Tensor shard_tensor(const at::Tensor& view, std::vector<std::int64_t> whole,
                        bool is_flat = false);

struct EngineLife;
// Records the owner of a shard.
void set_owner(const at::Tensor& shard, const std::shared_ptr<EngineLife>& life);
// Returns the owner of a shard; null for any other tensor.
std::shared_ptr<EngineLife> owner_of(const at::Tensor& tensor) noexcept;

// A shard of one parameter, of several, or another tensor.
enum class ShardKind { kNone, kOne, kFlat };
ShardKind shard_kind(const at::Tensor& tensor) noexcept;
// Requires: ShardKind::kOne.
const std::vector<std::int64_t>& whole_shape(const at::Tensor& shard);

}  // namespace fsdp::internal
