// SPDX-License-Identifier: Apache-2.0
// Training of a Gpt on simulated devices with every option that changes what is queued.
#include <string>
#include <vector>

#include "libfsdp/state_dict.h"
#include "tests/libfsdp/sim/scene.h"

namespace fsdp::test {
namespace {

struct TrainingCase {
  std::string name;
  std::function<void(Scene&, FsdpOptions&)> change;
};

void PrintTo(const TrainingCase& test, std::ostream* out) {
  *out << test.name;
}

class SimTraining : public testing::TestWithParam<TrainingCase> {};

TEST_P(SimTraining, equals_the_cpu) {
  Scene scene;
  GetParam().change(scene, scene.options);
  train(scene);
}

std::string name_of_case(const testing::TestParamInfo<TrainingCase>& info) {
  return info.param.name;
}

using Cases = std::vector<TrainingCase>;

void bf16(Scene& scene, FsdpOptions& options) {
  options.mixed_precision.param_dtype = torch::kBFloat16;
  scene.only_losses = true;
  scene.tolerance = 0.05;
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, SimTraining,
    testing::ValuesIn(Cases{
        {"full_shard", [](Scene&, FsdpOptions&) {}},
        {"full_shard_of_1", [](Scene& scene, FsdpOptions&) { scene.world_size = 1; }},
        {"full_shard_of_3", [](Scene& scene, FsdpOptions&) { scene.world_size = 3; }},
        {"full_shard_on_an_eager_device",
         [](Scene& scene, FsdpOptions&) { scene.progress = sim::Progress::kEager; }},
        {"shard_grad_op",
         [](Scene&, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kShardGradOp;
         }},
        {"shard_grad_op_with_forward_prefetch",
         [](Scene&, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kShardGradOp;
           options.forward_prefetch = true;
         }},
        {"no_shard",
         [](Scene&, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kNoShard;
         }},
        {"hybrid",
         [](Scene& scene, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kHybridShard;
           scene.world_size = 4;
         }},
        {"hybrid_zero2",
         [](Scene& scene, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kHybridShardZero2;
           scene.world_size = 4;
         }},
        {"flat_parameters", [](Scene&, FsdpOptions& options) { options.use_orig_params = false; }},
        {"one_bucket", [](Scene&, FsdpOptions& options) { options.bucket_bytes = 4 << 20; }},
        {"buckets_of_two",
         [](Scene& scene, FsdpOptions& options) {
           options.bucket_bytes = 110'000;
           options.forward_prefetch = true;
           scene.layers = 6;
         }},
        {"states_of_rank_0",
         [](Scene&, FsdpOptions& options) { options.sync_module_states = true; }},
    }),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(Prefetch, SimTraining,
                         testing::ValuesIn(Cases{
                             {"default", [](Scene& scene, FsdpOptions&) { scene.layers = 8; }},
                             {"default_on_an_eager_device",
                              [](Scene& scene, FsdpOptions&) {
                                scene.layers = 8;
                                scene.progress = sim::Progress::kEager;
                              }},
                             {"forward",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                options.forward_prefetch = true;
                              }},
                             {"forward_on_an_eager_device",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                options.forward_prefetch = true;
                                scene.progress = sim::Progress::kEager;
                              }},
                             {"forward_without_limit",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                options.forward_prefetch = true;
                                options.limit_all_gathers = false;
                              }},
                             {"none",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                options.backward_prefetch = BackwardPrefetch::kNone;
                              }},
                             {"none_and_no_waits",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                scene.steps = 8;
                                scene.waits_each_step = false;
                                options.backward_prefetch = BackwardPrefetch::kNone;
                              }},
                             {"after_gradients",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.layers = 8;
                                options.backward_prefetch = BackwardPrefetch::kBackwardPost;
                              }},
                             {"checkpointed",
                              [](Scene& scene, FsdpOptions&) { scene.checkpointed = true; }},
                             {"checkpointed_forward",
                              [](Scene& scene, FsdpOptions& options) {
                                scene.checkpointed = true;
                                options.forward_prefetch = true;
                              }},
                         }),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Precision, SimTraining,
                         testing::ValuesIn(Cases{
                             {"bf16", bf16},
                             {"bf16_with_forward_prefetch",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                options.forward_prefetch = true;
                              }},
                             {"bf16_reduced_in_float32",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                options.mixed_precision.reduce_dtype = torch::kFloat;
                              }},
                             {"bf16_of_1",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                scene.world_size = 1;
                              }},
                             {"bf16_hybrid",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                options.sharding_strategy = ShardingStrategy::kHybridShard;
                                scene.world_size = 4;
                              }},
                             {"bf16_gradients_are_kept",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                options.mixed_precision.param_dtype = std::nullopt;
                                options.mixed_precision.reduce_dtype = torch::kBFloat16;
                                options.mixed_precision.keep_low_precision_grads = true;
                                scene.steps = 1;
                              }},
                         }),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Steps, SimTraining,
    testing::ValuesIn(Cases{
        {"no_sync",
         [](Scene& scene, FsdpOptions&) {
           scene.micro_steps = 3;
           scene.no_sync = true;
         }},
        {"no_sync_of_shard_grad_op",
         [](Scene& scene, FsdpOptions& options) {
           options.sharding_strategy = ShardingStrategy::kShardGradOp;
           scene.micro_steps = 3;
           scene.no_sync = true;
         }},
        {"accumulation", [](Scene& scene, FsdpOptions&) { scene.micro_steps = 3; }},
        {"accumulation_of_flat_parameters",
         [](Scene& scene, FsdpOptions& options) {
           options.use_orig_params = false;
           scene.micro_steps = 3;
         }},
        {"clipped", [](Scene& scene, FsdpOptions&) { scene.clip = 0.3; }},
        {"adamw",
         [](Scene& scene, FsdpOptions&) {
           scene.adamw = true;
           scene.tolerance = 1e-3;
         }},
        {"zeroed_gradients", [](Scene& scene, FsdpOptions&) { scene.set_to_none = false; }},
        {"no_waits",
         [](Scene& scene, FsdpOptions&) {
           scene.waits_each_step = false;
           scene.steps = 6;
         }},
        {"state_dicts_and_summons_between",
         [](Scene& scene, FsdpOptions&) {
           scene.waits_each_step = false;
           scene.after_step = [](ShardedGpt& sharded, const Group& group) {
             sharded.state_dict();
             sharded.summon_full_params().close();
             const torch::NoGradGuard no_grad;
             sharded.forward(device_tokens(group->rank(), 3));
           };
         }},
    }),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(Offload, SimTraining,
                         testing::ValuesIn(Cases{
                             {"full_shard",
                              [](Scene&, FsdpOptions& options) {
                                options.cpu_offload.offload_params = true;
                              }},
                             {"of_1",
                              [](Scene& scene, FsdpOptions& options) {
                                options.cpu_offload.offload_params = true;
                                scene.world_size = 1;
                              }},
                             {"clipped_adamw",
                              [](Scene& scene, FsdpOptions& options) {
                                options.cpu_offload.offload_params = true;
                                scene.clip = 0.3;
                                scene.adamw = true;
                                scene.tolerance = 1e-3;
                              }},
                             {"bf16",
                              [](Scene& scene, FsdpOptions& options) {
                                bf16(scene, options);
                                options.cpu_offload.offload_params = true;
                              }},
                             {"accumulation",
                              [](Scene& scene, FsdpOptions& options) {
                                options.cpu_offload.offload_params = true;
                                scene.micro_steps = 2;
                              }},
                             {"no_waits",
                              [](Scene& scene, FsdpOptions& options) {
                                options.cpu_offload.offload_params = true;
                                scene.waits_each_step = false;
                              }},
                         }),
                         name_of_case);

}  // namespace
}  // namespace fsdp::test
