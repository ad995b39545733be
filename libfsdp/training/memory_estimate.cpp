// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/memory_estimate.h"

#include <algorithm>
#include <iomanip>
#include <memory>
#include <ostream>
#include <sstream>
#include <unordered_set>

#include <c10/core/ScalarType.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/units/module_units.h"
#include "libfsdp/internal/units/unit.h"
#include "libfsdp/shard_layout.h"

namespace fsdp {
using namespace internal;
namespace {

using Units = std::vector<std::unique_ptr<Unit>>;

int shard_ranks_of(const FsdpOptions& options, const TrainingSetup& setup) {
  FSDP_CHECK(setup.world_size >= 1, "memory estimate: expected a world size of at least 1, found ",
             setup.world_size);
  if (options.sharding_strategy == ShardingStrategy::kNoShard) return 1;
  if (!is_hybrid(options.sharding_strategy) || setup.node_size == 0) return setup.world_size;
  FSDP_CHECK(setup.node_size > 0 && setup.world_size % setup.node_size == 0,
             "memory estimate: expected a node size that divides the ", setup.world_size,
             " ranks, found ", setup.node_size);
  return setup.node_size;
}

// Memory of one unit while the engine works on it.
struct WorkingSet {
  std::int64_t full = 0;     // gathered parameters
  std::int64_t gather = 0;   // the collective's own buffers
  std::int64_t grads = 0;    // staged full gradients
  std::int64_t reduced = 0;  // received by a reduction
};

WorkingSet working_set(const Unit& unit, int ranks, bool offloaded, const TrainingSetup& setup) {
  WorkingSet result;
  const bool resident = ranks == 1 && !casts(unit) && !offloaded;
  if (!resident && !unit.parameters.empty()) {
    result.full = ranks == 1 ? unit.gather_bytes : (unit.gather_bytes - kTrailerBytes) * ranks;
    if (ranks > 1) result.gather = unit.gather_bytes * ranks;
    if (ranks > 1 && (casts(unit) || offloaded)) result.gather += unit.gather_bytes;
  }
  for (const auto& group : unit.groups) {
    if (group.grad_numel == 0) continue;
    const auto block = group.grad_numel * item_bytes(group.reduce_dtype) + kTrailerBytes;
    result.grads += block * ranks;
    if (ranks > 1) result.reduced += setup.adds_while_scattering ? block : block * ranks;
  }
  return result;
}

// The sum of the two largest of some numbers.
class TwoLargest {
 public:
  void add(std::int64_t value) {
    second_ = std::max(second_, std::min(first_, value));
    first_ = std::max(first_, value);
  }
  std::int64_t sum() const { return first_ + second_; }
  std::int64_t first() const { return first_; }

 private:
  std::int64_t first_ = 0;
  std::int64_t second_ = 0;
};

// Note [peak of the engine's memory]: unsharded units at any time are the root, the units that
// contain the current operator's unit, that unit, and one other, which is either about to be
// resharded or gathered ahead.  Strategies that keep units after forward have all units.  One
// gather is in flight, of a unit or of several small ones within bucket_bytes.  In backward the
// root's gradients are staged from its first to its last operator, together with those of one unit
// that is being computed and of one that is being reduced; small units wait for each other within
// bucket_bytes.  The bounds add the worst of each, though these seldom coincide.
void set_peaks(MemoryEstimate& estimate, const Units& units, const std::vector<WorkingSet>& sets,
               std::int64_t bucket_bytes, bool reshards) {
  std::int64_t all_full = 0;
  std::int64_t all_gathers = 0;
  std::int64_t all_grads = 0;
  std::int64_t deepest = 0;  // the largest total of a unit and those around it, without the root
  TwoLargest full;
  TwoLargest gather;
  TwoLargest reduction;
  for (std::size_t i = 0; i < units.size(); ++i) {
    all_full += sets[i].full;
    all_gathers += sets[i].gather;
    gather.add(sets[i].gather);
    if (i == 0) continue;
    all_grads += sets[i].grads;
    full.add(sets[i].full);
    reduction.add(sets[i].grads + sets[i].reduced);
    std::int64_t chain = 0;
    for (const Unit* unit = units[i].get(); unit->parent != nullptr; unit = unit->parent) {
      chain += sets[static_cast<std::size_t>(unit->id)].full;
    }
    deepest = std::max(deepest, chain);
  }
  const WorkingSet& root = sets.front();
  const auto unsharded =
      reshards ? root.full + std::max(full.sum(), deepest + full.first()) : all_full;
  // Several units are combined before they are gathered.
  const auto together = units.size() > 1 ? std::min(bucket_bytes, all_gathers) : 0;
  const auto gathering = std::max(gather.first(), together + together / estimate.shard_ranks);
  const auto waiting = std::min(bucket_bytes, all_grads);
  estimate.gathered = unsharded + gathering;
  estimate.reducing =
      root.grads + std::max(reduction.sum(), root.reduced + reduction.first()) + 2 * waiting;
}

std::int64_t bytes_of_buffers(const torch::nn::Module& module, const FsdpOptions& options,
                              const Ignored& ignored) {
  std::int64_t bytes = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& buffer : module.buffers()) {
    const auto* impl = buffer.unsafeGetTensorImpl();
    if (!seen.insert(impl).second) continue;
    const bool casts = options.mixed_precision.buffer_dtype && buffer.is_floating_point() &&
                       !ignored.tensors.contains(impl);
    bytes += buffer.numel() *
             item_bytes(casts ? *options.mixed_precision.buffer_dtype : buffer.scalar_type());
  }
  return bytes;
}

std::int64_t bytes_of_unsharded(const torch::nn::Module& module, const Ignored& ignored,
                                const TrainingSetup& setup) {
  std::int64_t bytes = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* impl = parameter.unsafeGetTensorImpl();
    if (!ignored.tensors.contains(impl) || !seen.insert(impl).second) continue;
    const auto copies = parameter.requires_grad() ? 2 + setup.optimizer_tensors : 1;
    bytes += copies * parameter.numel() * item_bytes(parameter.scalar_type());
  }
  return bytes;
}

std::string mebibytes(std::int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20);
  return text.str();
}

}  // namespace

std::int64_t MemoryEstimate::on_device() const noexcept {
  return (offloaded ? 0 : parameters + gradients + optimizer_state) + unsharded + buffers +
         gathered + reducing;
}

std::int64_t MemoryEstimate::on_host() const noexcept {
  return offloaded ? parameters + gradients + optimizer_state : 0;
}

MemoryEstimate estimate_memory(const torch::nn::Module& module, const FsdpOptions& options,
                               const TrainingSetup& setup) {
  MemoryEstimate result;
  result.strategy = options.sharding_strategy;
  result.shard_ranks = shard_ranks_of(options, setup);
  result.replicas = setup.world_size / result.shard_ranks;
  result.offloaded = options.cpu_offload.offload_params;
  const Ignored ignored = ignored_by(module, options);
  const auto sharding = std::make_shared<const Sharding>(sharding_of(options));
  const Units units = units_of(module, options, ignored, sharding);
  std::vector<WorkingSet> sets;
  for (const auto& unit : units) {
    UnitEstimate estimate;
    estimate.name = unit->name;
    for (const auto& parameter : unit->parameters) {
      parameter->layout = layout_over(*parameter, result.shard_ranks);
      estimate.numel += parameter->full.numel();
    }
    estimate.local_bytes = set_offsets(*unit);
    for (const FlatGroup& group : unit->groups) {
      result.gradients += group.grad_numel * item_bytes(group.grad_dtype());
      result.optimizer_state +=
          setup.optimizer_tensors * group.grad_numel * item_bytes(group.dtype);
    }
    sets.push_back(working_set(*unit, result.shard_ranks, result.offloaded, setup));
    estimate.full_bytes = sets.back().full;
    result.parameters += estimate.local_bytes;
    result.units.push_back(std::move(estimate));
  }
  result.unsharded = bytes_of_unsharded(module, ignored, setup);
  result.buffers = bytes_of_buffers(module, options, ignored);
  set_peaks(result, units, sets, options.bucket_bytes, sharding->reshards_after_forward);
  return result;
}

std::vector<MemoryEstimate> estimate_strategies(const torch::nn::Module& module,
                                                const FsdpOptions& options,
                                                const TrainingSetup& setup) {
  std::vector<MemoryEstimate> result;
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
        ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    if (is_hybrid(strategy) && setup.node_size == 0) continue;
    FsdpOptions with_strategy = options;
    with_strategy.sharding_strategy = strategy;
    result.push_back(estimate_memory(module, with_strategy, setup));
  }
  return result;
}

void print_memory_table(std::ostream& out, const std::vector<MemoryEstimate>& estimates) {
  std::vector<std::vector<std::string>> rows{{"MiB a rank", "shards", "parameters", "gradients",
                                              "optimizer", "unsharded", "buffers", "gathered",
                                              "reducing", "device", "host"}};
  for (const auto& estimate : estimates) {
    rows.push_back({name_of(estimate.strategy),
                    std::to_string(estimate.shard_ranks) +
                        (estimate.replicas > 1 ? " x " + std::to_string(estimate.replicas) : ""),
                    mebibytes(estimate.parameters), mebibytes(estimate.gradients),
                    mebibytes(estimate.optimizer_state), mebibytes(estimate.unsharded),
                    mebibytes(estimate.buffers), mebibytes(estimate.gathered),
                    mebibytes(estimate.reducing), mebibytes(estimate.on_device()),
                    mebibytes(estimate.on_host())});
  }
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    out << std::left << std::setw(static_cast<int>(widths[0])) << row[0] << std::right;
    for (std::size_t i = 1; i < row.size(); ++i) {
      out << "  " << std::setw(static_cast<int>(widths[i])) << row[i];
    }
    out << '\n';
  }
}

}  // namespace fsdp
