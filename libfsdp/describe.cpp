// SPDX-License-Identifier: Apache-2.0
// ShardedModule::print: the tree of units with what each holds on this rank.
#include <algorithm>
#include <ostream>
#include <string>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp {
using namespace internal;
namespace {

std::int64_t depth_of(const Unit& unit) {
  std::int64_t depth = 0;
  for (const Unit* above = unit.parent; above != nullptr; above = above->parent) ++depth;
  return depth;
}

void print_unit(std::ostream& out, const Unit& unit) {
  std::int64_t numel = 0;
  std::int64_t frozen = 0;
  std::int64_t bytes = 0;
  for (const auto& parameter : unit.parameters) {
    numel += parameter->layout.numel();
    if (!parameter->trainable) frozen += parameter->layout.numel();
    bytes += static_cast<std::int64_t>(parameter->shard.nbytes());
  }
  out << std::string(static_cast<std::size_t>(2 * depth_of(unit)), ' ')
      << (unit.name.empty() ? "(root)" : unit.name) << ": " << unit.parameters.size()
      << " parameters, " << numel << " elements";
  if (frozen != 0) out << " (" << frozen << " frozen)";
  out << ", " << bytes << " bytes on this rank";
  for (const FlatGroup& group : unit.groups) {
    out << ", " << c10::toString(group.dtype);
    if (group.compute_dtype != group.dtype)
      out << " computed in " << c10::toString(group.compute_dtype);
    if (group.reduce_dtype != group.compute_dtype)
      out << " reduced in " << c10::toString(group.reduce_dtype);
  }
  out << '\n';
}

}  // namespace

void ShardedModule::print(std::ostream& out) const {
  const ProcessGroup& shard = *engine_->shard_group();
  out << "FullyShardedDataParallel, " << name_of(options().sharding_strategy) << ", sharded over "
      << shard.size() << (shard.size() == 1 ? " rank" : " ranks");
  if (const auto& replicate = engine_->replicate_group())
    out << ", " << replicate->size() << " replicas";
  out << ", use_orig_params " << (options().use_orig_params ? "true" : "false") << '\n';
  for (const auto& unit : engine_->units()) print_unit(out, *unit);
  for (const NamedTensor& ignored : unmanaged_)
    out << "ignored: " << ignored.first << ", " << ignored.second.nbytes() << " bytes\n";
}

std::ostream& operator<<(std::ostream& out, const ShardedModule& module) {
  module.print(out);
  return out;
}

}  // namespace fsdp
