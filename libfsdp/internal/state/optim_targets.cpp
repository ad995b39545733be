// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/optim_targets.h"

#include <unordered_map>
#include <utility>

#include <torch/optim/optimizer.h>

#include "formats/bytes/base/text.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/state/load_problems.h"

namespace fsdp::internal {
namespace {

using TargetOfTensor = std::unordered_map<const c10::TensorImpl*, OptimTarget>;

TargetOfTensor all_targets(const ShardedModule& model) {
  TargetOfTensor result;
  const auto add = [&](OptimTarget target) {
    result.emplace(target.tensor.unsafeGetTensorImpl(), std::move(target));
  };
  for (const Unit* unit : model.units()) {
    if (!unit->sharding->flat) {
      for (const auto& parameter : unit->parameters) {
        const auto names = model.names_of(*parameter);
        add({parameter->shard, names.front(), nullptr, {{names, parameter.get()}}});
      }
      continue;
    }
    for (const FlatGroup& group : unit->groups) {
      OptimTarget target{group.flat, flat_name(model.name_of(*unit), *unit, group), &group, {}};
      for (const Parameter* parameter : group.parameters)
        target.pieces.push_back({model.names_of(*parameter), parameter});
      add(std::move(target));
    }
  }
  for (const auto& [name, tensor] : model.unmanaged())
    add({tensor, name, nullptr, {{{name}, nullptr}}});
  return result;
}

}  // namespace

at::Tensor OptimTarget::view_of(const OptimPiece& piece, const at::Tensor& state) const {
  if (flat == nullptr) return state;
  const Parameter& parameter = *piece.parameter;
  return state.narrow(0, parameter.offset, parameter.shard.numel()).view(parameter.shard.sizes());
}

std::vector<std::vector<OptimTarget>> optim_targets(const ShardedModule& model,
                                                    const torch::optim::Optimizer& optimizer) {
  const TargetOfTensor known = all_targets(model);
  std::vector<std::vector<OptimTarget>> result;
  LoadProblems problems;
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto& targets = result.emplace_back();
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& tensor = groups[g].params()[i];
      const auto found = known.find(tensor.unsafeGetTensorImpl());
      if (found != known.end()) {
        targets.push_back(found->second);
      } else {
        problems.add(formats::cat("parameter ", i, " of group ", g, ", of shape ",
                                  formats::shape_text(tensor.sizes())));
      }
    }
  }
  problems.check(
      "the optimizer holds a tensor that is not a parameter of the sharded module (make it from "
      "ShardedModule::parameters())");
  return result;
}

}  // namespace fsdp::internal
