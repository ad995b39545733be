// SPDX-License-Identifier: Apache-2.0
// ShardedModule::print: the tree of units with what each holds on this rank.
#include <ostream>
#include <sstream>
#include <string>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"

namespace fsdp {
using namespace internal;
namespace {

// Returns "FULL_SHARD, sharded over 2 ranks, use_orig_params true".
std::string sharding_text(const Sharding& sharding) {
  std::ostringstream text;
  text << fsdp::name_of(sharding.strategy) << ", sharded over " << sharding.world_size()
       << (sharding.world_size() == 1 ? " rank" : " ranks");
  if (sharding.mesh.replicate) text << ", " << sharding.mesh.replicate->size() << " replicas";
  text << ", use_orig_params " << (sharding.flat ? "false" : "true");
  return text.str();
}

void print_unit(std::ostream& out, const Unit& unit, const std::string& name) {
  std::int64_t numel = 0;
  std::int64_t frozen = 0;
  std::int64_t bytes = 0;
  for (const auto& parameter : unit.parameters) {
    numel += parameter->layout.numel();
    if (!parameter->trainable) frozen += parameter->layout.numel();
    bytes += static_cast<std::int64_t>(parameter->shard.nbytes());
  }
  for (const Unit* above = unit.parent; above != nullptr; above = above->parent) out << "  ";
  out << (name.empty() ? "(root)" : name) << ": " << unit.parameters.size() << " parameters, "
      << numel << " elements";
  if (frozen != 0) out << " (" << frozen << " frozen)";
  out << ", " << bytes << " bytes on this rank";
  for (const FlatGroup& group : unit.groups) {
    out << ", " << c10::toString(group.dtype);
    if (group.compute_dtype != group.dtype)
      out << " computed in " << c10::toString(group.compute_dtype);
    if (group.reduce_dtype != group.compute_dtype)
      out << " reduced in " << c10::toString(group.reduce_dtype);
  }
}

}  // namespace

void ShardedModule::print(std::ostream& out) const {
  const std::vector<Unit*> all = units();
  const Sharding& sharding = *all.front()->sharding;
  out << "FullyShardedDataParallel, " << sharding_text(sharding) << '\n';
  for (const Unit* unit : all) {
    print_unit(out, *unit, name_of(*unit));
    if (unit->sharding != all.front()->sharding) out << ", " << sharding_text(*unit->sharding);
    out << '\n';
  }
  for (const NamedTensor& ignored : unmanaged())
    out << "ignored: " << ignored.first << ", " << ignored.second.nbytes() << " bytes\n";
}

std::ostream& operator<<(std::ostream& out, const ShardedModule& module) {
  module.print(out);
  return out;
}

}  // namespace fsdp
