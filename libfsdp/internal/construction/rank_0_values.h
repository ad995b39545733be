// SPDX-License-Identifier: Apache-2.0
// Gives every rank the values that tensors have on rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/units/sharding.h"

namespace fsdp::internal {

// Broadcasts tensors in bunches, because a collective costs as much as some megabytes of data.
// All functions are collective.
class Rank0Values {
 public:
  // Broadcasts among replicas first, then inside each sharding group.  `most_bytes`: the limit for
  // the whole tensors of a bunch and their packed copy.
  Rank0Values(const Mesh& mesh, std::int64_t most_bytes);

  // The tensor, on the device of the collectives, has its values when send() returns true, or
  // finish() has returned.
  bool send(const at::Tensor& tensor);
  // Sends what is left.
  void finish();

 private:
  void broadcast_all(const at::Tensor& values) const;

  const Mesh& mesh_;
  const std::int64_t full_bunch_;  // in bytes
  std::vector<at::Tensor> bunch_;
  std::int64_t bunch_bytes_ = 0;
};

}  // namespace fsdp::internal
