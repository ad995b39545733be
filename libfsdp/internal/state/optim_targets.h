// SPDX-License-Identifier: Apache-2.0
// The tensors that an optimizer over a sharded module steps, and the parameters that lie in them.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/units/unit.h"

namespace torch::optim {
class Optimizer;
}

namespace fsdp {
class ShardedModule;
}  // namespace fsdp

namespace fsdp::internal {

// One parameter of the module, inside a tensor of the optimizer.
struct OptimPiece {
  std::vector<std::string> names;        // several if it is tied
  const Parameter* parameter = nullptr;  // null: ignored, every rank has it whole

  const std::string& name() const noexcept { return names.front(); }  // in state dicts
};

// One tensor of the optimizer.
struct OptimTarget {
  at::Tensor tensor;
  std::string name;                 // of the parameter, or of the flat tensor
  const FlatGroup* flat = nullptr;  // null: not a flat tensor
  std::vector<OptimPiece> pieces;   // one, unless it is flat

  // Returns the piece's share of a tensor that is laid out like `tensor`: a view, with the shape of
  // the parameter's rows on this rank.
  at::Tensor view_of(const OptimPiece& piece, const at::Tensor& state) const;
};

// Lists the targets by param group, in the optimizer's order.
// Throws: c10::Error naming the tensors that are not the module's parameters().
std::vector<std::vector<OptimTarget>> optim_targets(const ShardedModule& model,
                                                    const torch::optim::Optimizer& optimizer);

}  // namespace fsdp::internal
