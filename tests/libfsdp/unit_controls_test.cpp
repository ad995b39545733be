// SPDX-License-Identifier: Apache-2.0
// FSDP2's controls of units: each trains right, and does what it is for.  PyTorch beside them:
// tests/parity.  Random orders: sequences_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fsdp.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;  // the modules
using Handle = std::shared_ptr<ShardedModule>;

// A GPT of three blocks, each a unit, and its handles.
struct Composed {
  explicit Composed(const Group& group,
                    const std::function<void(FullyShardOptions&)>& change = {}) {
    FullyShardOptions options;
    options.process_group = group;
    options.device_id = test::device_id_of_rank(group->rank());
    options.bucket_bytes = 0;
    options.backward_prefetch = BackwardPrefetch::kNone;
    options.node_size = 1;
    if (change) change(options);
    for (const auto& block : *module->blocks) blocks.push_back(fully_shard(block, options));
    root = fully_shard(module, options);
  }
  Tensor loss(int rank, int step) const {
    const Tensor tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    const auto device = internal::engine_of(*root).streams().device();
    return next_token_loss(Gpt(module)->forward(tokens.to(device)).cpu(), tokens);
  }
  std::map<std::string, Tensor> gradients() const {
    std::map<std::string, Tensor> result;
    for (const auto& [name, shard] : root->named_parameters())
      result[name] = shard.grad().defined() ? full_tensor(shard, shard.grad()).cpu() : Tensor();
    return result;
  }
  std::int64_t gathers() const { return internal::engine_of(*root).stats().gathers; }
  Unit& unit(std::size_t i) const { return *internal::engine_of(*root).units()[i]; }

  Gpt module = filled_gpt(3);
  std::vector<Handle> blocks;
  Handle root;
};

// What a module that is not sharded computes of the same batches, on the data of all ranks.
std::map<std::string, Tensor> expected_gradients(int world_size, const std::vector<int>& steps,
                                                 double factor = 1) {
  Gpt whole = filled_gpt(3);
  for (const int step : steps) {
    for (int rank = 0; rank < world_size; ++rank) {
      const Tensor tokens =
          random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
      (next_token_loss(whole->forward(tokens), tokens) * (factor / world_size)).backward();
    }
  }
  std::map<std::string, Tensor> result;
  for (const auto& item : whole->named_parameters()) result[item.key()] = item.value().grad();
  return result;
}

void expect_near(const std::map<std::string, Tensor>& found,
                 const std::map<std::string, Tensor>& expected) {
  for (const auto& [name, gradient] : expected) {
    ASSERT_TRUE(found.at(name).defined()) << name;
    EXPECT_LE(distance(found.at(name), gradient), 1e-5) << name;
  }
}

TEST(UnitControls, a_unit_is_unsharded_ahead_and_resharded) {
  spawn_ranks(2, [](const Group& group) {
    const Composed net(group);
    const Tensor weight = net.module->blocks->ptr<BlockImpl>(1)->up->weight;
    const auto bytes = [&] { return weight.storage().nbytes(); };
    net.blocks[1]->unshard();
    EXPECT_EQ(bytes(), 24U * 96 * 4);
    EXPECT_EQ(net.module->head->weight.storage().nbytes(), 0U);
    net.blocks[1]->reshard();
    EXPECT_EQ(bytes(), 0U);

    UnshardHandle handle = net.blocks[1]->unshard(/*async=*/true);
    EXPECT_EQ(net.unit(2).state, UnitState::kGathering);
    handle.wait();
    EXPECT_EQ(bytes(), 24U * 96 * 4);
    // Others are used before it; it stays.
    const std::int64_t gathers = net.gathers();
    net.loss(group->rank(), 0).backward();
    EXPECT_EQ(net.gathers() - gathers, 3 + 2);
    expect_near(net.gradients(), expected_gradients(2, {0}));
    {
      const FullParams scope = net.root->summon_full_params();
      EXPECT_THAT(error_of([&] { net.root->unshard(); }), HasSubstr("inside summon_full_params"));
    }
    {
      const torch::NoGradGuard no_grad;
      net.loss(0, 1);
      EXPECT_EQ(net.unit(0).state, UnitState::kUnsharded);
      net.root->reshard();
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(net.unit(i).state, UnitState::kSharded) << i;
    }
    Gpt wrapped = filled_gpt(2);
    FullyShardedDataParallel<Gpt> wrapper(wrapped, options_over(group));
    EXPECT_THAT(error_of([&] { wrapper.unshard(); }),
                HasSubstr("outside of the forward of the wrapper"));
  });
}

TEST(UnitControls, what_stays_gathered_is_not_gathered_again) {
  spawn_ranks(2, [](const Group& group) {
    const Composed net(group);
    const auto gathers_of = [&](int step, bool sync = true) {
      net.root->set_requires_gradient_sync(sync);
      const std::int64_t before = net.gathers();
      net.loss(group->rank(), step).backward();
      return net.gathers() - before;
    };
    // The root and the last block stay from forward to backward.
    EXPECT_EQ(gathers_of(0), 4 + 2);
    net.blocks[0]->set_reshard_after_forward(false);
    EXPECT_EQ(gathers_of(1), 4 + 1);
    net.root->set_reshard_after_forward(false);
    EXPECT_EQ(gathers_of(2), 4);
    net.root->set_reshard_after_forward(true);
    net.root->set_reshard_after_backward(false);
    EXPECT_EQ(gathers_of(3, false), 4 + 2);
    EXPECT_EQ(gathers_of(4, false), 2) << "all are there; two are resharded after forward";
    net.root->set_reshard_after_backward(true);
    EXPECT_EQ(gathers_of(5), 2);
    EXPECT_EQ(gathers_of(6), 4 + 2);
    expect_near(net.gradients(), expected_gradients(2, {0, 1, 2, 3, 4, 5, 6}));
  });
}

TEST(UnitControls, a_unit_gathers_those_that_it_was_told_to) {
  spawn_ranks(2, [](const Group& group) {
    const Composed net(group);
    struct Seen {
      UnitState at_first;
      UnitState at_last;
    };
    const auto states_of_block_2 = [&] {
      // In the middle of forward, when block 0 is in use.
      std::vector<UnitState> states;
      const Tensor x =
          random_values({1, 3, 24}, 5).to(internal::engine_of(*net.root).streams().device());
      net.module->blocks->ptr<BlockImpl>(0)->forward(x);
      states.push_back(net.unit(3).state);
      net.root->reshard();
      return states.front();
    };
    EXPECT_EQ(states_of_block_2(), UnitState::kSharded);
    net.blocks[0]->set_modules_to_forward_prefetch({net.blocks[1].get(), net.blocks[2].get()});
    EXPECT_EQ(states_of_block_2(), UnitState::kGathering);
    net.blocks[0]->set_modules_to_forward_prefetch({});
    EXPECT_EQ(states_of_block_2(), UnitState::kSharded);

    net.blocks[2]->set_modules_to_backward_prefetch({net.blocks[0].get()});
    const auto before = internal::engine_of(*net.root).stats();
    net.loss(group->rank(), 0).backward();
    const auto after = internal::engine_of(*net.root).stats();
    EXPECT_EQ(after.prefetched_units - before.prefetched_units, 1);
    EXPECT_EQ(after.prefetch_hits - before.prefetch_hits, 1);
    expect_near(net.gradients(), expected_gradients(2, {0}));
    const Composed other(group);
    EXPECT_THAT(error_of([&] { net.root->set_modules_to_forward_prefetch({other.root.get()}); }),
                HasSubstr("in another sharded module"));
  });
}

TEST(UnitControls, a_unit_is_kept_by_some_ranks_until_its_backward) {
  for (const auto& [world_size, ranks] : {std::pair(4, 2), {2, 1}, {2, 2}, {6, 3}}) {
    SCOPED_TRACE(std::to_string(world_size) + " ranks, kept by " + std::to_string(ranks));
    spawn_ranks(world_size, [ranks = ranks](const Group& group) {
      const Composed net(
          group, [&](FullyShardOptions& options) { options.reshard_after_forward = ranks; });
      for (int step = 0; step < 2; ++step) {
        const Tensor loss = net.loss(group->rank(), step);
        const Unit& first = net.unit(1);
        EXPECT_EQ(first.state, UnitState::kSharded);
        EXPECT_EQ(first.piece.numel() * ranks, first.gather_bytes * group->size());
        loss.backward();
        EXPECT_FALSE(first.piece.defined());
      }
      expect_near(net.gradients(), expected_gradients(group->size(), {0, 1}));
      EXPECT_EQ(internal::engine_of(*net.root).buffers().lent_bytes(Use::kParameters), 0);
    });
  }
  spawn_ranks(2, [](const Group& group) {
    EXPECT_THAT(error_of([&] {
                  Composed(group,
                           [](FullyShardOptions& options) { options.reshard_after_forward = 3; });
                }),
                HasSubstr("reshard_after_forward is 3, which does not divide"));
  });
}

TEST(UnitControls, gradients_are_divided_and_seen_as_the_user_says) {
  for (const bool offload : {false, true}) {
    spawn_ranks(2, [&](const Group& group) {
      const Composed net(group, [&](FullyShardOptions& options) {
        options.offload_policy.offload_params = offload;
      });
      net.root->set_gradient_divide_factor(8);
      net.loss(group->rank(), 0).backward();
      expect_near(net.gradients(), expected_gradients(2, {0}, 2.0 / 8));
      net.root->zero_grad();
      std::int64_t seen = 0;
      net.blocks[1]->set_all_reduce_hook([&](at::Tensor& reduced) {
        seen += reduced.numel();
        reduced.mul_(3);
      });
      net.root->set_gradient_divide_factor(2);
      net.loss(group->rank(), 0).backward();
      EXPECT_EQ(seen, net.unit(2).groups.front().grad_numel);
      auto expected = expected_gradients(2, {0});
      for (auto& [name, gradient] : expected) {
        if (name.compare(0, 9, "blocks.1.") == 0) gradient = gradient * 3;
      }
      expect_near(net.gradients(), expected);
    });
  }
}

TEST(UnitControls, copies_are_averaged_when_the_user_says) {
  for (const int sharing : {1, 2}) {
    spawn_ranks(2 * sharing, [&](const Group& group) {
      const Composed net(group, [&](FullyShardOptions& options) {
        options.sharding_strategy = ShardingStrategy::kHybridShard;
        options.node_size = sharing;
      });
      net.root->set_requires_all_reduce(false);
      net.loss(group->rank(), 0).backward();
      for (const auto& [name, shard] : net.root->named_parameters())
        EXPECT_FALSE(shard.grad().defined()) << name;
      EXPECT_THAT(error_of([&] { net.root->clip_grad_norm_(1.0); }),
                  HasSubstr("not reduced over the copies yet"));
      net.loss(group->rank(), 1).backward();
      net.root->set_requires_all_reduce(true);
      net.loss(group->rank(), 2).backward();
      expect_near(net.gradients(), expected_gradients(group->size(), {0, 1, 2}));
    });
  }
}

TEST(UnitControls, a_backward_that_is_not_the_last_leaves_a_reduction_in_flight) {
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](const Group& group) {
      const Composed net(group);
      net.root->set_is_last_backward(false);
      net.loss(group->rank(), 0).backward();
      int missing = 0;
      for (const Tensor& shard : net.root->parameters()) missing += shard.grad().defined() ? 0 : 1;
      EXPECT_GT(missing, 0);
      EXPECT_THAT(error_of([&] { net.root->clip_grad_norm_(1.0); }),
                  HasSubstr("still being reduced"));
      EXPECT_THAT(error_of([&] { net.root->zero_grad(); }), HasSubstr("still being reduced"));
      Tensor frozen = net.module->blocks->ptr<BlockImpl>(2)->up->bias;
      frozen.set_requires_grad(false);
      net.loss(group->rank(), 1).backward();
      frozen.set_requires_grad(true);
      net.root->set_is_last_backward(true);
      net.loss(group->rank(), 2).backward();
      auto expected = expected_gradients(group->size(), {0, 1, 2});
      expected["blocks.2.up.bias"] = expected_gradients(group->size(), {0, 2})["blocks.2.up.bias"];
      expect_near(net.gradients(), expected);
    });
  }
}

TEST(UnitControls, one_parameter_is_gathered_whole) {
  spawn_ranks(3, [](const Group& group) {
    Gpt module = filled_gpt(2);
    const Gpt whole = filled_gpt(2);
    FullyShardedDataParallel<Gpt> sharded(module,
                                          options_over(group, module_wrap_policy<BlockImpl>()));
    const auto expected = whole->named_parameters();
    for (const auto& [name, shard] : sharded.named_parameters())
      EXPECT_TRUE(torch::equal(full_tensor(shard).cpu(), expected[name].detach())) << name;
    const Tensor plain = torch::ones({3});
    EXPECT_TRUE(full_tensor(plain).is_same(plain));
    EXPECT_THAT(error_of([&] {
                  full_tensor(sharded.parameters().front(), torch::ones({1, 1, 7}));
                }),
                HasSubstr("expected values of the shape"));
  });
}

TEST(UnitControls, a_part_of_a_wrapped_module_has_its_own_state) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt(2);
    FullyShardedDataParallel<Gpt> sharded(module,
                                          options_over(group, module_wrap_policy<BlockImpl>()));
    const Handle block = sharded.part(*module->blocks->ptr(1));
    EXPECT_THAT(block->unit_names(), ElementsAre(""));
    EXPECT_TRUE(torch::equal(*block->state_dict().at("up.weight").as_tensor(),
                             *sharded.state_dict().at("blocks.1.up.weight").as_tensor()));
    block->set_requires_gradient_sync(false);
    gpt_loss(sharded, group->rank(), 0).backward();
    EXPECT_FALSE(internal::engine_of(sharded).units()[1]->parameters.front()->kept.defined());
    EXPECT_TRUE(internal::engine_of(sharded).units()[2]->parameters.front()->kept.defined());
    {
      // A setting of one unit outlives the scope around it.
      const NoSync quiet(sharded);
      EXPECT_FALSE(sharded.requires_gradient_sync());
    }
    EXPECT_TRUE(sharded.requires_gradient_sync());
    EXPECT_FALSE(block->requires_gradient_sync());
    EXPECT_THAT(error_of([&] { sharded.part(*module->head); }), HasSubstr("is not a unit"));
  });
}

}  // namespace
}  // namespace fsdp
