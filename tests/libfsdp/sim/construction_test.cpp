// SPDX-License-Identifier: Apache-2.0
// The memory in which a sharded module is made, on simulated devices: its shards, and a unit.
#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "libfsdp/meta_device.h"
#include "tests/libfsdp/sim/scene.h"

namespace fsdp::test {
namespace {

struct Start {
  std::string name;
  int world_size = 2;
  bool on_meta = true;
  std::function<void(FsdpOptions&)> change = [](FsdpOptions&) {};
};

void PrintTo(const Start& start, std::ostream* out) {
  *out << start.name;
}

class SimConstruction : public testing::TestWithParam<Start> {};

// Twelve layers of different sizes; each is a unit.
torch::nn::Sequential layers() {
  torch::nn::Sequential result;
  for (int i = 0; i < 12; ++i) result->push_back(torch::nn::Linear(200 + 10 * (i % 3), 220));
  return result;
}

TEST_P(SimConstruction, takes_the_shards_and_the_largest_unit) {
  Scene scene;
  scene.world_size = GetParam().world_size;
  run(scene, [](const Group& group, FsdpOptions options) {
    options.auto_wrap_policy = module_wrap_policy<torch::nn::LinearImpl>();
    GetParam().change(options);
    auto module = [] {
      if (!GetParam().on_meta) return layers();
      const MetaDevice meta;
      return layers();
    }();
    const int rank = group->rank();
    sim::reset_counters(rank);
    const std::int64_t before = sim::counters(rank).memory.live_bytes;
    FullyShardedDataParallel<torch::nn::Sequential> sharded(module, options);
    const sim::MemoryCounters memory = sim::counters(rank).memory;
    const std::int64_t largest = 4 * (220 * 220 + 220);
    const std::int64_t shards = memory.live_bytes - before;
    // Parameters and what aligns them.
    EXPECT_LE(shards * internal::engine_of(sharded).shard_group()->size(), 1.2 * 12 * largest);
    EXPECT_LE(static_cast<double>(memory.peak_live_bytes - before),
              static_cast<double>(shards) + 1.05 * static_cast<double>(largest));
  });
}

std::vector<Start> starts() {
  const auto sync = [](FsdpOptions& options) { options.sync_module_states = true; };
  return {{"on_meta"},
          {"on_the_cpu", 2, false},
          {"four_ranks", 4},
          {"one_rank", 1},
          {"values_of_rank_0", 2, true, sync},
          {"values_of_rank_0_from_the_cpu", 3, false, sync},
          {"offloaded", 2, true,
           [](FsdpOptions& options) { options.cpu_offload.offload_params = true; }},
          {"hybrid_with_values_of_rank_0", 4, true,
           [](FsdpOptions& options) {
             options.sync_module_states = true;
             options.sharding_strategy = ShardingStrategy::kHybridShard;
             options.node_size = 2;
           }},
          {"not_sharded", 2, true,
           [](FsdpOptions& options) { options.sharding_strategy = ShardingStrategy::kNoShard; }}};
}

INSTANTIATE_TEST_SUITE_P(, SimConstruction, testing::ValuesIn(starts()),
                         [](const auto& start) { return start.param.name; });

}  // namespace
}  // namespace fsdp::test
