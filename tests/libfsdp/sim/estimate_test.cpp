// SPDX-License-Identifier: Apache-2.0
// What estimate_memory() says of a training, and what the training holds on a simulated device.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "libfsdp/memory_estimate.h"
#include "tests/libfsdp/sim/scene.h"

namespace fsdp::test {
namespace {

constexpr int kSteps = 4;
// Buffers are rounded to pages, which are many beside units of some 10 kB.
constexpr double kPages = 8 * 4096;

struct EstimateCase {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  bool prefetch = false;  // in forward, too
  bool offload = false;
  bool bf16 = false;
  bool buckets = false;
  int layers = 3;
};

bool is_hybrid_case(const EstimateCase& test) {
  return test.strategy == ShardingStrategy::kHybridShard;
}

std::string name_of_case(const EstimateCase& test) {
  std::string result = name_of(test.strategy);
  if (test.prefetch) result += "_prefetch";
  if (test.offload) result += "_offload";
  if (test.bf16) result += "_bf16";
  if (test.buckets) result += "_buckets";
  return result + "_" + std::to_string(test.layers);
}

void PrintTo(const EstimateCase& test, std::ostream* out) {
  *out << name_of_case(test);
}

class SimEstimate : public testing::TestWithParam<EstimateCase> {};

std::int64_t held_in(const sim::Counters& counters, const std::string& stream) {
  const auto found = counters.memory_of.find(stream);
  return found == counters.memory_of.end() ? 0 : found->second.peak_held_bytes;
}

// Buffers are lent again if they are up to a quarter too large.  Where their sizes differ, as those
// of buckets do, those that wait for a user may be as many as those in use (see Buffers).
double slack(const EstimateCase& test) {
  return test.buckets || test.strategy == ShardingStrategy::kNoShard ? 2 : 1.25;
}

TEST_P(SimEstimate, bounds_what_a_training_holds) {
  const EstimateCase& test = GetParam();
  Scene scene;
  scene.layers = test.layers;
  scene.world_size = is_hybrid_case(test) ? 4 : 2;
  scene.options.sharding_strategy = test.strategy;
  scene.options.forward_prefetch = test.prefetch;
  scene.options.cpu_offload.offload_params = test.offload;
  if (test.bf16) scene.options.mixed_precision.param_dtype = torch::kBFloat16;
  if (test.buckets) scene.options.bucket_bytes = 64 << 10;
  TrainingSetup setup;
  setup.world_size = scene.world_size;
  setup.node_size = is_hybrid_case(test) ? 2 : 0;
  setup.optimizer_tensors = 0;
  setup.adds_while_scattering = true;
  FsdpOptions options = scene.options;
  options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
  const MemoryEstimate estimate = estimate_memory(*build(scene), options, setup);
  run(scene, [&](const Group& group, FsdpOptions given) {
    const int rank = group->rank();
    given.auto_wrap_policy = module_wrap_policy<BlockImpl>();
    sim::reset_counters(rank);
    const std::int64_t before = sim::counters(rank).memory.live_bytes;
    ShardedGpt sharded(build(scene), given);
    name_lanes(sharded);
    const std::int64_t made = sim::counters(rank).memory.live_bytes - before;
    EXPECT_LE(made, (test.offload ? 0 : estimate.parameters) + estimate.buffers +
                        2048 * (test.layers + 4));
    sim::reset_counters(rank);
    torch::optim::SGD optimizer(sharded.parameters(), 0.05);
    std::vector<Tensor> tokens;
    for (int i = 0; i < kSteps; ++i) tokens.push_back(device_tokens(rank, i));
    for (const Tensor& input : tokens) {
      next_token_loss(sharded.forward(input), input).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const sim::Counters counters = sim::counters(rank);
    const double gathered = static_cast<double>(held_in(counters, "unshard"));
    const double reduced = static_cast<double>(held_in(counters, "reduce"));
    EXPECT_LE(gathered, slack(test) * static_cast<double>(estimate.gathered) + kPages);
    // Gradients stay in the memory that they are reduced into.
    const std::int64_t kept = test.offload ? 0 : estimate.gradients;
    EXPECT_LE(reduced, slack(test) * static_cast<double>(estimate.reducing + kept) + kPages);
    // An estimate that is far above would be a bound, too.
    if (test.strategy != ShardingStrategy::kNoShard) {
      EXPECT_GE(gathered, 0.3 * static_cast<double>(estimate.gathered));
    }
    if (const char* const path = std::getenv("FSDP_ESTIMATES"); path != nullptr && rank == 0) {
      std::ofstream(path, std::ios::app)
          << name_of_case(test) << ' ' << gathered / static_cast<double>(estimate.gathered) << ' '
          << reduced / static_cast<double>(estimate.reducing + kept) << ' ' << made << ' '
          << estimate.parameters << '\n';
    }
  });
}

std::vector<EstimateCase> cases() {
  std::vector<EstimateCase> result;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                              ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
    for (int bits = 0; bits < 32; ++bits) {
      const auto bit = [&](int number) { return (bits >> number & 1) != 0; };
      result.push_back({strategy, bit(0), bit(1), bit(2), bit(3), bit(4) ? 7 : 3});
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(, SimEstimate, testing::ValuesIn(cases()),
                         [](const auto& test) { return name_of_case(test.param); });

}  // namespace
}  // namespace fsdp::test
