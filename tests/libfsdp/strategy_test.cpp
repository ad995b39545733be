// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/strategy.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fairscale_options.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/train_loop.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A module for a Trainer: steps beside forward.
struct StepsImpl : test::GptImpl {
  StepsImpl() : GptImpl(2, false) { fill_parameters(*this); }
  torch::Tensor training_step(const torch::Tensor& tokens) {
    return test::next_token_loss(forward(tokens), tokens);
  }
  torch::Tensor validation_step(const torch::Tensor& tokens) { return training_step(tokens) + 1; }
  torch::Tensor test_step(const torch::Tensor& tokens, double offset) {
    return training_step(tokens) + offset;
  }
};
TORCH_MODULE(Steps);

struct PredictsImpl : StepsImpl {
  torch::Tensor predict_step(const torch::Tensor& tokens) { return forward(tokens).argmax(-1); }
};
TORCH_MODULE(Predicts);

Optimizers adamw(const std::vector<at::Tensor>& parameters) {
  return {std::make_shared<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2))};
}

torch::Tensor tokens_of(int step, int rank) {
  return random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
}

using Body = std::function<void(StrategyOptions options)>;

// Runs the body on every rank, with options by which a strategy finds the others.
void on_ranks(int world_size, const Body& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  test::spawn_ranks(world_size, [&](const Group& group) {
    StrategyOptions options;
    options.cluster_environment.rank = group->rank();
    options.cluster_environment.world_size = world_size;
    options.cluster_environment.store = store;
    options.timeout = group->timeout();
    options.fsdp.auto_wrap_policy = module_wrap_policy<test::BlockImpl>();
    body(options);
  });
}

// Makes `count` steps from step `first`; every rank sees the data of all ranks, so losses do not
// depend on their number.
std::vector<double> train(Strategy<Steps>& strategy, int first, int count) {
  std::vector<double> losses;
  for (int step = first; step < first + count; ++step) {
    strategy.optimizers()[0]->zero_grad();
    const auto loss = strategy.training_step(tokens_of(step, 0));
    loss.backward();
    strategy.optimizers()[0]->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(Strategy, steps_are_those_of_the_module_under_the_roots_bracket) {
  on_ranks(2, [](const StrategyOptions& options) {
    Strategy<Predicts> strategy(options);
    strategy.setup_environment();
    Predicts plain;
    auto& sharded = strategy.setup(Predicts(), adamw);
    EXPECT_THAT(sharded.unit_names(), ElementsAre("", "blocks.0", "blocks.1"));
    const auto tokens = tokens_of(0, strategy.global_rank());
    const auto loss = strategy.training_step(tokens);
    EXPECT_TRUE(loss.requires_grad());
    EXPECT_LT(distance(loss.detach(), plain->training_step(tokens).detach()), 1e-6);
    loss.backward();
    const auto valid = strategy.validation_step(tokens);
    EXPECT_FALSE(valid.requires_grad());
    EXPECT_LT(distance(valid, plain->validation_step(tokens).detach()), 1e-6);
    EXPECT_LT(distance(strategy.test_step(tokens, 2.5), plain->test_step(tokens, 2.5).detach()),
              1e-6);
    EXPECT_TRUE(at::equal(strategy.predict_step(tokens), plain->predict_step(tokens)));
    strategy.teardown();
  });
}

TEST(Strategy, predicting_is_forward_where_the_module_has_no_step_for_it) {
  on_ranks(1, [](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    Steps plain;
    strategy.setup(Steps());
    const auto found = strategy.predict_step(tokens_of(0, 0));
    EXPECT_FALSE(found.requires_grad());
    EXPECT_LT(distance(found, plain->forward(tokens_of(0, 0)).detach()), 1e-6);
    strategy.teardown();
  });
}

TEST(Strategy, modules_built_empty_are_given_memory_by_setup) {
  on_ranks(2, [](StrategyOptions options) {
    options.fsdp.sync_module_states = true;
    Strategy<torch::nn::Sequential> strategy(options);
    strategy.setup_environment();
    torch::nn::Sequential module;
    {
      const auto empty = strategy.tensor_init_context(true);
      module->push_back(torch::nn::Linear(5, 7));
    }
    EXPECT_TRUE(module->parameters()[0].is_meta());
    auto& sharded = strategy.setup(module);
    EXPECT_EQ(strategy.predict_step(torch::ones({3, 5})).sizes(),
              (std::vector<std::int64_t>{3, 7}));
    EXPECT_FALSE(sharded.parameters()[0].is_meta());
    {
      const auto filled = strategy.tensor_init_context(false);
      EXPECT_FALSE(torch::nn::Linear(2, 2)->weight.is_meta());
    }
    strategy.teardown();
  });
}

TEST(Strategy, marked_modules_are_the_units_whatever_the_policy_says) {
  on_ranks(2, [](const StrategyOptions& options) {
    Strategy<torch::nn::Sequential> strategy(options);
    strategy.setup_environment();
    torch::nn::Sequential module;
    {
      const auto scope = strategy.model_sharded_context();
      module->push_back(wrap(torch::nn::Linear(5, 7)));
      module->push_back(torch::nn::Linear(7, 3));
    }
    EXPECT_THAT(strategy.setup(module).unit_names(), ElementsAre("", "0"));
    strategy.teardown();
  });
}

TEST(Strategy, a_mesh_of_copies_takes_the_place_of_nodes) {
  on_ranks(4, [](StrategyOptions options) {
    options.fsdp.sharding_strategy = ShardingStrategy::kHybridShard;
    options.device_mesh = {2, 2};
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    const auto& sharded = strategy.setup(Steps());
    // Half of 53 rows on each of two ranks.
    EXPECT_EQ(sharded.parameters()[0].size(0), strategy.global_rank() % 2 == 0 ? 27 : 26);
    strategy.teardown();
  });
}

TEST(Strategy, values_are_broadcast_from_one_rank) {
  on_ranks(3, [](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    const int rank = strategy.global_rank();
    EXPECT_EQ(strategy.broadcast(std::string("from ") + std::to_string(rank), 1), "from 1");
    EXPECT_EQ(strategy.broadcast(std::filesystem::path("/run") / std::to_string(rank)), "/run/0");
    const auto tensor = strategy.broadcast(at::full({rank + 1, 2}, rank, at::kLong), 2);
    EXPECT_TRUE(at::equal(tensor, at::full({3, 2}, 2, at::kLong)));
    const StateDict nested{
        {"step", rank + 7},
        {"nan", std::numeric_limits<double>::quiet_NaN()},
        {"name", "r" + std::to_string(rank)},
        {"none", StateValue()},
        {"flag", rank == 0},
        {std::int64_t{3},
         StateTuple{{0.9, StateList{StateDict{{"half", at::ones({2}, at::kHalf)}}}}}}};
    // More bits than a double has, no elements, and a view that is not contiguous.
    constexpr std::int64_t kLong = (std::int64_t{1} << 60) + 1;
    const StateDict odd{{"long", at::scalar_tensor(kLong, at::kLong)},
                        {"empty", at::empty({0, 3})},
                        {"complex", at::full({}, c10::complex<double>(1, rank))},
                        {"view", at::arange(6).view({2, 3}).t() + rank}};
    const StateValue odd_found = strategy.broadcast(StateValue(odd), 1);
    EXPECT_EQ(odd_found.dict().at("long").as_tensor()->item<std::int64_t>(), kLong);
    EXPECT_EQ(odd_found.dict().at("empty").as_tensor()->sizes(), at::IntArrayRef({0, 3}));
    EXPECT_EQ(odd_found.dict().at("complex").as_tensor()->item<c10::complex<double>>(),
              c10::complex<double>(1, 1));
    EXPECT_TRUE(
        at::equal(*odd_found.dict().at("view").as_tensor(), at::arange(6).view({2, 3}).t() + 1));
    const StateValue found = strategy.broadcast(StateValue(nested), 0);
    const StateDict& dict = found.dict();
    EXPECT_EQ(*dict.at("step").as_int(), 7);
    EXPECT_TRUE(std::isnan(*dict.at("nan").as_double()));
    EXPECT_EQ(*dict.at("name").as_string(), "r0");
    EXPECT_TRUE(dict.at("none").is_none());
    EXPECT_TRUE(*dict.at("flag").as_bool());
    const StateTuple& tuple = *dict.at(std::int64_t{3}).as_tuple();
    EXPECT_EQ(*tuple.items.at(0).as_double(), 0.9);
    const StateList& list = *tuple.items.at(1).as_list();
    EXPECT_TRUE(at::equal(*list.at(0).dict().at("half").as_tensor(), at::ones({2}, at::kHalf)));
    strategy.teardown();
  });
}

TEST(Strategy, tensors_are_reduced_to_a_new_one) {
  on_ranks(3, [](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    const auto own = at::full({2}, strategy.global_rank() + 1.0);
    EXPECT_TRUE(at::equal(strategy.reduce(own), at::full({2}, 2.0)));
    EXPECT_TRUE(at::equal(strategy.reduce(own, nullptr, ReduceKind::kSum), at::full({2}, 6.0)));
    EXPECT_TRUE(at::equal(own, at::full({2}, strategy.global_rank() + 1.0)));
    const auto count = at::full({}, strategy.global_rank() == 0 ? 1 : 0, at::kLong);
    EXPECT_NEAR(strategy.reduce(count).item<double>(), 1.0 / 3, 1e-7);
    EXPECT_EQ(strategy.reduce(count, nullptr, ReduceKind::kSum).item<std::int64_t>(), 1);
    const auto bits = at::full({1}, strategy.global_rank() + 1, at::kLong);  // 1, 2, 3
    const auto by_name = [&](const char* op) {
      return strategy.reduce(bits, nullptr, op).item<std::int64_t>();
    };
    EXPECT_EQ(by_name("sum"), 6);
    EXPECT_EQ(by_name("product"), 6);
    EXPECT_EQ(strategy.reduce(bits + 1, nullptr, "PRODUCT").item<std::int64_t>(), 24);
    EXPECT_EQ(by_name("min"), 1);
    EXPECT_EQ(by_name("MAX"), 3);
    EXPECT_EQ(by_name("band"), 0);
    EXPECT_EQ(by_name("bor"), 3);
    EXPECT_EQ(strategy.reduce(bits + 3, nullptr, "bxor").item<std::int64_t>(), 4 ^ 5 ^ 6);
    EXPECT_EQ(strategy.reduce(bits, nullptr, "avg").item<double>(), 2.0);
    EXPECT_THAT(error_of([&] { strategy.reduce(bits, nullptr, "median"); }), HasSubstr("'median'"));
    strategy.teardown();
  });
}

// A run saved on some ranks continues on others as if uninterrupted.
void expect_resumes(StateDictType type) {
  const test::TempDir folder;
  const auto path = folder.path() / "last.ckpt";
  std::vector<double> uninterrupted;
  on_ranks(2, [&](StrategyOptions options) {
    options.state_dict_type = type;
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    strategy.setup(Steps(), adamw);
    train(strategy, 0, 2);
    strategy.save_checkpoint(strategy.dump_checkpoint({{"epoch", 1}, {"note", "here"}}), path);
    // A second save replaces the first.
    train(strategy, 2, 1);
    strategy.save_checkpoint(strategy.dump_checkpoint({{"epoch", 2}, {"note", "there"}}), path);
    const auto losses = train(strategy, 3, 3);
    if (strategy.is_global_zero()) uninterrupted = losses;
    strategy.teardown();
  });
  EXPECT_EQ(std::filesystem::is_directory(path), type == StateDictType::kSharded);
  for (const int world_size : {1, 2, 3}) {
    // The form that a strategy itself would write does not matter.
    for (const auto own : {StateDictType::kFull, StateDictType::kSharded}) {
      on_ranks(world_size, [&](StrategyOptions options) {
        options.state_dict_type = own;
        Strategy<Steps> strategy(options);
        strategy.setup_environment();
        strategy.setup(Steps(), adamw);
        const StateDict extra = strategy.load_checkpoint(path);
        EXPECT_EQ(*extra.at("epoch").as_int(), 2);
        EXPECT_EQ(*extra.at("note").as_string(), "there");
        EXPECT_EQ(extra.find("state_dict"), nullptr);
        EXPECT_EQ(extra.find("optimizer_states"), nullptr);
        const auto losses = train(strategy, 3, 3);
        for (std::size_t i = 0; i < losses.size(); ++i)
          EXPECT_NEAR(losses[i], uninterrupted[i], 1e-5 * uninterrupted[i]) << i;
        strategy.teardown();
      });
    }
  }
}

TEST(Strategy, a_full_checkpoint_is_one_file_and_resumes_anywhere) {
  expect_resumes(StateDictType::kFull);
}

TEST(Strategy, a_sharded_checkpoint_is_a_folder_and_resumes_anywhere) {
  expect_resumes(StateDictType::kSharded);
}

TEST(Strategy, storage_options_are_refused_before_anything_is_written) {
  const test::TempDir folder;
  on_ranks(2, [&](StrategyOptions options) {
    for (const auto type : {StateDictType::kFull, StateDictType::kSharded}) {
      options.state_dict_type = type;
      Strategy<Steps> strategy(options);
      strategy.setup_environment();
      strategy.setup(Steps(), adamw);
      const auto path = folder.path() / "a.ckpt";
      for (const StateDict& given : {StateDict(), StateDict{{"compression", "zstd"}}}) {
        EXPECT_THAT(
            error_of([&] { strategy.save_checkpoint(strategy.dump_checkpoint(), path, given); }),
            AllOf(HasSubstr("storage_options"), HasSubstr("leave storage_options out")));
      }
      EXPECT_FALSE(std::filesystem::exists(path));
      strategy.teardown();
    }
  });
}

TEST(Strategy, full_state_is_on_rank_0_and_by_number_as_in_lightnings_files) {
  on_ranks(2, [](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    strategy.setup(Steps(), adamw);
    train(strategy, 0, 1);
    const StateDict state = strategy.lightning_module_state_dict();
    const StateDict optimizer = strategy.optimizer_state(*strategy.optimizers()[0]);
    if (strategy.is_global_zero()) {
      EXPECT_EQ(state.at("emb.weight").as_tensor()->size(0), 53);
      const StateDict& first = optimizer.at("state").dict().at(std::int64_t{0}).dict();
      EXPECT_EQ(first.at("exp_avg").as_tensor()->size(0), 53);
    } else {
      EXPECT_TRUE(state.empty());
      EXPECT_TRUE(optimizer.empty());
    }
    strategy.teardown();
  });
}

TEST(Strategy, evaluation_loads_the_model_alone) {
  const test::TempDir folder;
  on_ranks(2, [&](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    strategy.setup(Steps(), adamw);
    train(strategy, 0, 1);
    strategy.save_checkpoint(strategy.dump_checkpoint(), folder.path() / "a.ckpt");
    const auto before = strategy.validation_step(tokens_of(9, 0));
    Strategy<Steps> evaluation([&] {
      StrategyOptions other = options;
      other.cluster_environment.store = c10::make_intrusive<c10d::HashStore>();
      other.cluster_environment.rank = 0;
      other.cluster_environment.world_size = 1;
      return other;
    }());
    evaluation.setup_environment();
    evaluation.setup(Steps());
    evaluation.load_checkpoint(folder.path() / "a.ckpt");
    EXPECT_LT(distance(evaluation.validation_step(tokens_of(9, 0)), before), 1e-6);
    strategy.teardown();
  });
}

TEST(Strategy, what_contradicts_itself_is_refused) {
  const auto made = [](const std::function<void(StrategyOptions&)>& change) {
    StrategyOptions options;
    change(options);
    return error_of([&] { Strategy<Steps> strategy(options); });
  };
  EXPECT_THAT(made([](auto& o) { o.state_dict_type = StateDictType::kLocal; }),
              HasSubstr("LOCAL_STATE_DICT"));
  EXPECT_THAT(made([](auto& o) {
                o.device_mesh = {2, 2};
              }),
              HasSubstr("device_mesh is for HYBRID_SHARD, found FULL_SHARD"));
  EXPECT_THAT(made([](auto& o) { o.fsdp.device_id = c10::Device(c10::kCPU); }),
              HasSubstr("parallel_devices"));
  Strategy<Steps> fresh((StrategyOptions()));
  EXPECT_THAT(error_of([&] { fresh.barrier(); }), HasSubstr("call setup_environment() first"));
  EXPECT_THAT(error_of([&] { fresh.load_checkpoint("x"); }), HasSubstr("call setup(module)"));
  EXPECT_THAT(error_of([&] { fresh.training_step(tokens_of(9, 0)); }),
              HasSubstr("call setup(module)"));
  EXPECT_THAT(error_of([&] { fresh.model(); }), HasSubstr("call setup(module)"));
  EXPECT_EQ(fresh.timeout(), std::chrono::seconds(1800));
}

TEST(Strategy, strategies_have_names) {
  EXPECT_FALSE(strategy_options("fsdp").fsdp.cpu_offload.offload_params);
  EXPECT_TRUE(strategy_options("fsdp_cpu_offload").fsdp.cpu_offload.offload_params);
  EXPECT_THAT(error_of([] { strategy_options("ddp"); }), HasSubstr("found 'ddp'"));
  EXPECT_EQ(sharding_strategy_of("full_shard"), ShardingStrategy::kFullShard);
  EXPECT_EQ(sharding_strategy_of("_HYBRID_SHARD_ZERO2"), ShardingStrategy::kHybridShardZero2);
  EXPECT_THAT(error_of([] { sharding_strategy_of("ZERO3"); }),
              HasSubstr("FULL_SHARD, SHARD_GRAD_OP"));
}

TEST(Strategy, a_rank_takes_its_device_by_its_local_rank_alone) {
  on_ranks(2, [](StrategyOptions options) {
    const int rank = *options.cluster_environment.rank;
    options.parallel_devices = {test::device_of_rank(0), test::device_of_rank(1)};
    options.cluster_environment.local_rank = rank;
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    EXPECT_EQ(strategy.root_device(), test::device_of_rank(rank));
    EXPECT_EQ(strategy.process_group()->backend_name(), test::backend_of_devices());
    strategy.teardown();
  });
}

TEST(Strategy, a_global_rank_does_not_say_which_device_a_rank_takes) {
  StrategyOptions options;
  options.parallel_devices = {c10::kCPU, c10::kCPU};
  options.cluster_environment.rank = 1;
  options.cluster_environment.world_size = 2;
  options.cluster_environment.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(
      error_of([&] { Strategy<Steps>(options).setup_environment(); }),
      HasSubstr("parallel_devices names 2 devices, but this rank's place on its node is not known "
                "(ranks may be on several nodes); set cluster_environment.local_rank"));
  options.cluster_environment.local_rank = 2;
  EXPECT_THAT(error_of([&] { Strategy<Steps>(options).setup_environment(); }),
              HasSubstr("parallel_devices names 2 devices; this is rank 2 of its node"));
}

TEST(Strategy, optimizers_over_other_tensors_are_refused) {
  on_ranks(1, [](const StrategyOptions& options) {
    Strategy<Steps> strategy(options);
    strategy.setup_environment();
    const Steps module;
    EXPECT_THAT(error_of([&] {
                  strategy.setup(module, [&](const auto&) { return adamw({at::ones({3, 4})}); });
                }),
                HasSubstr("optimizer 0 holds a tensor [3, 4]"));
  });
}

TEST(FairScaleOptions, mean_what_fully_sharded_training_of_fairscale_did) {
  DDPFullyShardedOptions fairscale;
  const StrategyOptions plain = strategy_options(fairscale);
  EXPECT_EQ(plain.fsdp.sharding_strategy, ShardingStrategy::kFullShard);
  EXPECT_FALSE(plain.fsdp.use_orig_params);
  EXPECT_FALSE(plain.fsdp.cpu_offload.offload_params);
  EXPECT_FALSE(plain.fsdp.mixed_precision.param_dtype);
  EXPECT_EQ(plain.fsdp.bucket_bytes, 25 << 20);
  EXPECT_TRUE(plain.state_dict_to_cpu);

  fairscale.flatten_parameters = false;
  fairscale.reshard_after_forward = false;
  fairscale.cpu_offload = true;
  fairscale.move_grads_to_cpu = true;
  fairscale.compute_dtype = at::kHalf;
  fairscale.fp32_reduce_scatter = true;
  fairscale.bucket_cap_mb = -1;
  fairscale.min_num_params = 100;
  fairscale.state_dict_to_cpu = false;
  const StrategyOptions other = strategy_options(fairscale);
  EXPECT_EQ(other.fsdp.sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_TRUE(other.fsdp.use_orig_params);
  EXPECT_TRUE(other.fsdp.cpu_offload.offload_params);
  EXPECT_EQ(other.fsdp.mixed_precision.param_dtype, at::kHalf);
  EXPECT_EQ(other.fsdp.mixed_precision.reduce_dtype, at::kFloat);
  EXPECT_EQ(other.fsdp.bucket_bytes, 0);
  EXPECT_FALSE(other.state_dict_to_cpu);
  const Steps module;
  EXPECT_EQ(unit_names(*module, other.fsdp.auto_wrap_policy),
            unit_names(*module, size_based_auto_wrap_policy(100)));

  fairscale.move_grads_to_cpu = false;
  EXPECT_THAT(error_of([&] { strategy_options(fairscale); }), HasSubstr("move_grads_to_cpu"));
  fairscale.move_grads_to_cpu.reset();
  fairscale.compute_dtype.reset();
  EXPECT_THAT(error_of([&] { strategy_options(fairscale); }), HasSubstr("compute_dtype"));
}

}  // namespace
}  // namespace fsdp
