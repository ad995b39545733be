// SPDX-License-Identifier: Apache-2.0
// Device memory as tensors of the CPU, with which operators compute.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include "tests/support/sim_device/shadow.h"

namespace fsdp::test::sim {

bool is_on_device(const at::Tensor& tensor);

// Makes CPU tensors of device tensors' memory.  Tensors that share a storage have aliases that
// share one.
class HostAliases {
 public:
  at::Tensor of(const at::Tensor& tensor);

 private:
  std::map<c10::StorageImpl*, c10::Storage> storages_;
};

// Moves a result of work to the device, into new memory of the current stream.
at::Tensor moved_to_device(const at::Tensor& result, c10::Device device, const Access& work);

// Runs one kernel on the current stream of the first device tensor among `inputs`: `compute` gets
// an alias for each device tensor and the other inputs as they are.  Replays of a graph may call it
// again later, so it must own what it uses.
// Returns: its results, on the device; undefined ones stay undefined.
using Tensors = std::vector<at::Tensor>;
Tensors run_kernel(const char* name, const Tensors& inputs,
                   const std::function<Tensors(const Tensors&)>& compute);

}  // namespace fsdp::test::sim
