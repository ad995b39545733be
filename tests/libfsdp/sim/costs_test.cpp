// SPDX-License-Identifier: Apache-2.0
// What sharding costs a step on simulated devices: allocations, waits of the host, events, kernels
// and memory, beside a step of the same module without sharding and beside the estimate.
//
// FSDP_STEP_COSTS=PATH adds a line of JSON for each case to a file: tests/bench/device_steps.sh
// makes a table of it.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "libfsdp/memory_estimate.h"
#include "tests/libfsdp/sim/scene.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
namespace {

constexpr int kWarmSteps = 2;
constexpr int kSteps = 2;

struct CostCase {
  std::string strategy;
  std::string prefetch;
  int layers = 4;
};

void PrintTo(const CostCase& test, std::ostream* out) {
  *out << test.strategy << '_' << test.prefetch << '_' << test.layers;
}

// Trains without a wait of the host, and counts steps after the first ones.
template <typename Forward>
sim::Counters costs_of(int rank, std::vector<Tensor> parameters, const Forward& forward) {
  torch::optim::SGD optimizer(std::move(parameters), 0.05);
  std::vector<Tensor> tokens;
  for (int i = 0; i < kWarmSteps + kSteps; ++i) tokens.push_back(device_tokens(rank, i));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i == kWarmSteps) {
      sim::synchronize(rank);
      sim::reset_counters(rank);
    }
    next_token_loss(forward(tokens[i]), tokens[i]).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return sim::counters(rank);
}

sim::Counters costs_without_sharding(const Scene& scene) {
  sim::Counters result;
  run(scene, [&](const Group& group, const FsdpOptions&) {
    Gpt module = build(scene);
    module->to(device_of_rank(group->rank()));
    const sim::Counters costs =
        costs_of(group->rank(), module->parameters(),
                 [&](const Tensor& tokens) { return module->forward(tokens); });
    if (group->rank() == 0) result = costs;
  });
  return result;
}

std::int64_t allocations_in(const sim::Counters& counters, const std::string& stream) {
  const auto found = counters.memory_of.find(stream);
  return found == counters.memory_of.end() ? 0 : found->second.allocations;
}

std::int64_t held_in(const sim::Counters& counters, const std::string& stream) {
  const auto found = counters.memory_of.find(stream);
  return found == counters.memory_of.end() ? 0 : found->second.peak_held_bytes;
}

class SimCosts : public testing::TestWithParam<CostCase> {
 protected:
  void SetUp() override {
    scene_.layers = GetParam().layers;
    const std::string& strategy = GetParam().strategy;
    scene_.world_size = strategy == "HYBRID_SHARD" ? 4 : 2;
    scene_.options.sharding_strategy = strategy == "FULL_SHARD" ? ShardingStrategy::kFullShard
                                       : strategy == "SHARD_GRAD_OP"
                                           ? ShardingStrategy::kShardGradOp
                                       : strategy == "HYBRID_SHARD" ? ShardingStrategy::kHybridShard
                                                                    : ShardingStrategy::kNoShard;
    const std::string& prefetch = GetParam().prefetch;
    scene_.options.forward_prefetch = prefetch == "both";
    if (prefetch == "none") scene_.options.backward_prefetch = BackwardPrefetch::kNone;
  }

  static void write(const sim::Counters& counters, const sim::Counters& plain,
                    const MemoryEstimate& estimate, double units_held) {
    const char* const path = std::getenv("FSDP_STEP_COSTS");
    if (path == nullptr) return;
    const auto a_step = [](std::int64_t count) { return static_cast<double>(count) / kSteps; };
    std::ofstream(path, std::ios::app)
        << "{\"strategy\": \"" << GetParam().strategy << "\", \"prefetch\": \""
        << GetParam().prefetch << "\", \"layers\": " << GetParam().layers
        << ", \"lane_allocations\": "
        << a_step(allocations_in(counters, "unshard") + allocations_in(counters, "reduce"))
        << ", \"added_allocations\": "
        << a_step(counters.memory.allocations - plain.memory.allocations)
        << ", \"host_waits\": " << a_step(counters.host_waits())
        << ", \"events\": " << a_step(counters.events_recorded)
        << ", \"kernels\": " << a_step(counters.kernels)
        << ", \"plain_kernels\": " << a_step(plain.kernels)
        << ", \"live\": " << counters.memory.peak_live_bytes
        << ", \"held\": " << counters.memory.peak_held_bytes
        << ", \"plain_held\": " << plain.memory.peak_held_bytes
        << ", \"gathered_held\": " << held_in(counters, "unshard")
        << ", \"gathered_estimate\": " << estimate.gathered << ", \"units_held\": " << units_held
        << "}\n";
  }

  Scene scene_;
};

TEST_P(SimCosts, of_a_step) {
  const sim::Counters plain = costs_without_sharding(scene_);
  sim::Counters counters;
  MemoryEstimate estimate;
  double units_held = 0;
  run(scene_, [&](ShardedGpt& sharded, const Group& group) {
    const sim::Counters mine =
        costs_of(group->rank(), sharded.parameters(),
                 [&](const Tensor& tokens) { return sharded.forward(tokens); });
    if (group->rank() != 0) return;
    counters = mine;
    std::int64_t root = 0;
    std::int64_t unit_bytes = 0;
    for (const auto& unit : internal::engine_of(sharded).units()) {
      std::int64_t& bytes = unit->parent == nullptr ? root : unit_bytes;
      bytes =
          std::max(bytes, unit->gather_bytes * internal::engine_of(sharded).shard_group()->size());
    }
    units_held =
        static_cast<double>(held_in(counters, "unshard") - root) / static_cast<double>(unit_bytes);
    TrainingSetup setup;
    setup.world_size = group->size();
    setup.node_size = scene_.world_size == 4 ? 2 : 0;
    setup.adds_while_scattering = true;
    FsdpOptions options = scene_.options;
    options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
    estimate = estimate_memory(*build(scene_), options, setup);
  });
  EXPECT_EQ(allocations_in(counters, "unshard"), 0);
  EXPECT_EQ(allocations_in(counters, "reduce"), 0);
  EXPECT_LE(counters.memory.allocations, plain.memory.allocations);
  EXPECT_EQ(counters.fresh_blocks, 0);
  EXPECT_EQ(counters.host_waits(), 0);
  const bool reshards =
      GetParam().strategy == "FULL_SHARD" || GetParam().strategy == "HYBRID_SHARD";
  EXPECT_TRUE(!reshards || units_held <= 4) << units_held;
  // Buffers are rounded to pages, and up to a quarter larger.  Without gathers the stream holds
  // what is left of other tests.
  const bool gathers = GetParam().strategy != "NO_SHARD";
  EXPECT_TRUE(!gathers ||
              held_in(counters, "unshard") <= estimate.gathered + estimate.gathered / 4);
  write(counters, plain, estimate, units_held);
}

std::vector<CostCase> cost_cases() {
  std::vector<CostCase> cases;
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"}) {
    for (const char* prefetch : {"backward", "both", "none"}) {
      // Nothing is gathered ahead.
      if (std::string(strategy) == "NO_SHARD" && std::string(prefetch) != "none") continue;
      for (const int layers : {4, 8, 16}) cases.push_back({strategy, prefetch, layers});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Steps, SimCosts, testing::ValuesIn(cost_cases()),
                         [](const auto& test) { return testing::PrintToString(test.param); });

}  // namespace
}  // namespace fsdp::test
