// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/state_dict.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/libfsdp/state/whole_state.h"

namespace fsdp {
namespace {

using test::changed_state;
using test::expect_same;
using test::filled;
using test::Gpt;
using test::kStrategies;
using test::Odd;
using test::options_for;
using test::Tied;
using test::Zoo;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

Tensor loss_of(FullyShardedDataParallel<Gpt>& sharded) {
  const Tensor tokens = random_tokens({2, 6}, 53, 5);
  return test::next_token_loss(sharded.forward(tokens), tokens);
}

TEST(LoadStateDict, the_next_forward_sees_what_was_loaded) {
  for (const ShardingStrategy strategy : kStrategies) {
    for (const int world_size : {1, 2, 4}) {
      spawn_ranks(world_size, [&](const Group& group) {
        FsdpOptions options = options_for(group);
        options.sharding_strategy = strategy;
        FullyShardedDataParallel<Gpt> sharded(filled<Gpt>(), options);
        loss_of(sharded);  // without a backward: units may be unsharded
        Gpt other;
        const StateDict state = changed_state(*other);
        sharded.load_state_dict(state);
        {
          const torch::NoGradGuard no_grad;
          for (auto& item : other->named_parameters())
            item.value().copy_(*state.at(item.key()).as_tensor());
        }
        const Tensor tokens = random_tokens({2, 6}, 53, 5);
        const Tensor expected = test::next_token_loss(other->forward(tokens), tokens);
        EXPECT_LE(distance(loss_of(sharded), expected), 1e-5);
      });
    }
  }
}

TEST(LoadStateDict, sharded_and_local_state_goes_back_into_a_module_like_it) {
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kLocal}) {
    for (const bool use_orig_params : {false, true}) {
      spawn_ranks(3, [&](const Group& group) {
        FullyShardedDataParallel<Zoo> from(filled<Zoo>(), options_for(group, use_orig_params));
        set_state_dict_type(from, type);
        FullyShardedDataParallel<Zoo> into(Zoo(), options_for(group));
        EXPECT_TRUE(into.load_state_dict(from.state_dict()).same_keys());
        expect_same(into.state_dict(), *filled<Zoo>());
      });
    }
  }
}

struct TwoDtypesImpl : torch::nn::Module {
  TwoDtypesImpl() {
    register_parameter("w", torch::ones({5, 3}));
    register_parameter("d", torch::ones({4}, torch::kDouble));
    register_parameter("v", torch::ones({2, 2}));
  }
};
TORCH_MODULE(TwoDtypes);

TEST(LoadStateDict, a_unit_may_hold_several_dtypes) {
  spawn_ranks(3, [](const Group& group) {
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kSharded, StateDictType::kLocal}) {
      ShardedModule from(filled<TwoDtypes>().ptr(), options_for(group));
      ShardedModule into(TwoDtypes().ptr(), options_for(group));
      set_state_dict_type(from, type);
      const StateDict state = from.state_dict();
      EXPECT_EQ(state.find("_flat_param_Double") != nullptr, type == StateDictType::kLocal);
      EXPECT_TRUE(into.load_state_dict(state).cast.empty());
      expect_same(into.state_dict(), *filled<TwoDtypes>());
    }
  });
}

TEST(LoadStateDict, conversions_are_reported) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    StateDict state = sharded.state_dict();
    const Tensor halves = state.at("mid.bias").as_tensor()->to(torch::kBFloat16);
    state.set("mid.bias", halves);
    EXPECT_THAT(sharded.load_state_dict(state).cast, ElementsAre("mid.bias: bfloat16 -> float32"));
    EXPECT_TRUE(
        torch::equal(*sharded.state_dict().at("mid.bias").as_tensor(), halves.to(torch::kFloat)));
  });
}

TEST(LoadStateDict, everything_that_is_wrong_is_told_at_once_and_nothing_is_written) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Zoo> sharded(filled<Zoo>(), options_for(group));
    StateDict state = changed_state(*Zoo());
    state.set("conv.wieght", *state.at("conv.weight").as_tensor());
    state.erase("conv.weight");
    state.erase("gru.bias_hh_l0");
    state.set("prelu.weight", torch::ones({2}));
    state.set("batch.running_mean", torch::ones({5}));
    state.set("bilinear.bias", 3);
    state.set("group.bias", torch::ones({4}, torch::kComplexFloat));
    const std::string error = error_of([&] { sharded.load_state_dict(state); });
    for (const char* part :
         {"missing 'conv.weight' (nearest: 'conv.wieght')", "missing 'gru.bias_hh_l0'",
          "unexpected 'conv.wieght', which the module does not have (nearest: 'conv.weight')",
          "'prelu.weight': expected the shape [1], found [2]",
          "'batch.running_mean': expected the shape [6], found [5]",
          "'bilinear.bias': expected a tensor, found int",
          "'group.bias': expected float32, found complex64"})
      EXPECT_THAT(error, HasSubstr(part));
    expect_same(sharded.state_dict(), *filled<Zoo>());
  });
}

TEST(LoadStateDict, what_is_not_strict_is_reported) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    StateDict state = changed_state(*Tied());
    const Tensor bias = *state.at("mid.bias").as_tensor();
    state.erase("emb.weight");
    state.set("spare", torch::ones({}));
    const LoadReport report = sharded.load_state_dict(state, /*strict=*/false);
    EXPECT_THAT(report.missing, ElementsAre("emb.weight"));
    EXPECT_THAT(report.unexpected, ElementsAre("spare"));
    const StateDict now = sharded.state_dict();
    EXPECT_TRUE(torch::equal(*now.at("mid.bias").as_tensor(), bias));
    EXPECT_TRUE(torch::equal(*now.at("emb.weight").as_tensor(), filled<Tied>()->emb->weight));
  });
}

TEST(LoadStateDict, one_ranks_error_is_every_ranks) {
  spawn_ranks(3, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    StateDict state = changed_state(*Tied());
    if (group->rank() == 1) state.erase("mid.bias");
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                AllOf(HasSubstr("rank 1: "), HasSubstr("missing 'mid.bias'")));
    expect_same(sharded.state_dict(), *filled<Tied>());
  });
}

TEST(LoadStateDict, parts_of_other_ranks_are_refused) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Tied> sharded(filled<Tied>(), options_for(group));
    set_state_dict_type(sharded, StateDictType::kSharded);
    StateDict state = sharded.state_dict();
    ShardedTensor& bias = *state.at("mid.bias").as_sharded();
    bias.part = 1 - bias.part;
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                HasSubstr("'mid.bias': expected part 0 of 2, found part 1 of 2"));
    const std::vector<std::int64_t> shape{24};
    bias.layout = shard_layout(shape, 3);
    bias.part = 0;
    bias.local = torch::zeros({8});
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                HasSubstr("'mid.bias': expected part 0 of 2, found part 0 of 3: the whole tensor "
                          "is needed at another number of ranks"));
    bias.local = torch::zeros({7});
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }),
                HasSubstr("'mid.bias': expected the shape [8], found [7]"));
    bias = {};
    bias.layout = shard_layout(shape, 2);
    bias.part = group->rank();
    EXPECT_THAT(error_of([&] { sharded.load_state_dict(state); }), HasSubstr("has no memory"));
  });
}

TEST(LoadStateDict, local_state_of_another_layout_is_refused) {
  std::vector<StateDict> of_two(2);
  spawn_ranks(2, [&](const Group& group) {
    FullyShardedDataParallel<Odd> sharded(filled<Odd>(), options_for(group));
    set_state_dict_type(sharded, StateDictType::kLocal);
    of_two[static_cast<std::size_t>(group->rank())] = sharded.state_dict();
  });
  spawn_ranks(3, [&](const Group& group) {
    FullyShardedDataParallel<Odd> sharded(filled<Odd>(), options_for(group));
    const std::string error = error_of(
        [&] { sharded.load_state_dict(of_two[static_cast<std::size_t>(group->rank() % 2)]); });
    EXPECT_THAT(error, AllOf(HasSubstr("expected the layout 'rank 0 of 3: "),
                             HasSubstr("found 'rank 0 of 2: "),
                             HasSubstr("a local state dict fits only the same module")));
  });
}

}  // namespace
}  // namespace fsdp
