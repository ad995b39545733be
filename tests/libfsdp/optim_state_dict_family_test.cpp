// SPDX-License-Identifier: Apache-2.0
// PyTorch 1.11's functions of optimizer state, and keys of optimizer state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/state/state_skeleton.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/state/trained.h"

namespace fsdp {
using namespace internal;
namespace {

using test::expect_state;
using test::Odd;
using test::Reference;
using test::Sharded;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard};

TEST(OptimStateFamily, full_state_is_of_rank_0_unless_asked_otherwise) {
  spawn_ranks(3, [](const Group& ranks) {
    Reference reference("Adam");
    reference.train(0, 2);
    Sharded sharded(ranks, {"Adam", false});
    sharded.train(0, 2);
    set_state_dict_type(sharded.model, StateDictType::kLocal);
    const StateDict first = full_optim_state_dict(sharded.model, *sharded.optimizer);
    EXPECT_EQ(first.empty(), ranks->rank() != 0);
    const StateDict all = full_optim_state_dict(sharded.model, *sharded.optimizer, false);
    expect_state(all, reference.state());
    Sharded other(ranks, {"Adam", true});
    load_optimizer_state_dict(*other.optimizer,
                              shard_full_optim_state_dict(all, other.model, *other.optimizer));
    expect_state(full_optim_state_dict(other.model, *other.optimizer, false), reference.state());
  });
}

TEST(OptimStateFamily, what_rank_0_has_is_scattered) {
  for (const std::string& name : test::optimizer_names()) {
    for (const ShardingStrategy strategy : kStrategies) {
      for (const bool use_orig_params : {false, true}) {
        SCOPED_TRACE(name + " " + name_of(strategy));
        spawn_ranks(4, [&](const Group& ranks) {
          Reference reference(name);
          reference.train(0, 2);
          StateDict state;
          if (ranks->rank() == 0) state = reference.state();
          Sharded sharded(ranks, {name, use_orig_params, strategy});
          load_optimizer_state_dict(
              *sharded.optimizer,
              scatter_full_optim_state_dict(state, sharded.model, *sharded.optimizer));
          expect_state(full_optim_state_dict(sharded.model, *sharded.optimizer, false),
                       reference.state());
        });
      }
    }
  }
}

// Four ranks, two copies: the groups are given.
FsdpOptions in_two_copies(const Group& ranks, bool use_orig_params) {
  FsdpOptions options = test::options_for(ranks, {"", use_orig_params});
  const int copy = ranks->rank() / 2;
  const int part = ranks->rank() % 2;
  options.process_group = ranks->subgroup({copy * 2, copy * 2 + 1});
  options.replicate_group = ranks->subgroup({part, part + 2});
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  return options;
}

TEST(OptimStateFamily, copies_of_given_groups_have_one_first_rank) {
  for (const bool use_orig_params : {false, true}) {
    spawn_ranks(4, [&](const Group& ranks) {
      Reference reference("AdamW");
      reference.train(0, 2);
      FullyShardedDataParallel<Odd> model(test::odd_module(),
                                          in_two_copies(ranks, use_orig_params));
      const auto optimizer =
          test::make_optimizer("AdamW", test::groups_of(model.named_parameters()));
      load_optimizer_state_dict(
          *optimizer, scatter_full_optim_state_dict(
                          ranks->rank() == 0 ? reference.state() : StateDict(), model, *optimizer));
      expect_state(full_optim_state_dict(model, *optimizer, false), reference.state());
      EXPECT_EQ(full_optim_state_dict(model, *optimizer).empty(), ranks->rank() != 0);
      FullStateDictConfig config;
      config.rank0_only = true;
      set_state_dict_type(model, StateDictType::kFull, config);
      EXPECT_EQ(model.state_dict().empty(), ranks->rank() != 0);
      EXPECT_THAT(error_of([&] { scatter_full_optim_state_dict({}, model, *optimizer); }),
                  HasSubstr("failed on rank 0: the state dict has no key 'state'"));
      barrier(ranks, "end of the test");
    });
  }
}

TEST(OptimStateFamily, scattering_what_does_not_fit_fails_on_every_rank) {
  spawn_ranks(2, [](const Group& ranks) {
    Sharded sharded(ranks, {"AdamW", false});
    const auto scatter = [&](const StateDict& state) {
      return error_of(
          [&] { scatter_full_optim_state_dict(state, sharded.model, *sharded.optimizer); });
    };
    Reference reference("AdamW");
    reference.train(0, 1);
    StateDict state = reference.state();
    state.at("state").dict().at("b.weight").dict().set("exp_avg", torch::ones({2, 5}));
    state.at("state").dict().set("c.weight", state.at("state").dict().at("a.weight"));
    EXPECT_THAT(scatter(ranks->rank() == 0 ? state : StateDict()),
                AllOf(HasSubstr("'b.weight: exp_avg': expected the shape [1, 5], found [2, 5]"),
                      HasSubstr("unexpected 'c.weight'")));
    sharded.train(0, 1);
    EXPECT_THAT(scatter(sharded_optim_state_dict(sharded.model, *sharded.optimizer)),
                HasSubstr("expected whole tensors, found a sharded one"));
    EXPECT_THAT(scatter({}), HasSubstr("rank 0: the state dict has no key 'state'"));
  });
}

TEST(OptimStateFamily, sharded_state_is_flattened) {
  spawn_ranks(3, [](const Group& ranks) {
    Sharded sharded(ranks, {"RMSprop all", false});
    sharded.train(0, 2);
    const StateDict state = sharded_optim_state_dict(sharded.model, *sharded.optimizer);
    ASSERT_NE(state.at("state").dict().at("a.weight").dict().at("square_avg").as_sharded(),
              nullptr);
    Sharded other(ranks, {"RMSprop all", false});
    load_optimizer_state_dict(
        *other.optimizer, flatten_sharded_optim_state_dict(state, other.model, *other.optimizer));
    expect_state(full_optim_state_dict(other.model, *other.optimizer, false),
                 full_optim_state_dict(sharded.model, *sharded.optimizer, false));
  });
}

std::vector<std::string> keys_of(const StateDict& dict) {
  std::vector<std::string> keys;
  for (const auto& item : dict.entries()) keys.push_back(text_of(item.first));
  return keys;
}

std::vector<std::string> params(const StateDict& dict, std::size_t group) {
  std::vector<std::string> result;
  const StateDict& found = (*dict.at("param_groups").as_list())[group].dict();
  for (const StateValue& value : *found.at("params").as_list())
    result.push_back(value.as_string() != nullptr ? *value.as_string()
                                                  : "#" + std::to_string(*value.as_int()));
  return result;
}

TEST(OptimStateFamily, keys_are_names_or_numbers) {
  Reference reference("AdamW");
  reference.train(0, 1);
  const StateDict numbers = optimizer_state_dict(*reference.optimizer);
  EXPECT_THAT(params(numbers, 1), ElementsAre("#7", "#8"));
  // By the optimizer's order: its first group is everything except a's.
  const StateDict names = rekey_optim_state_dict(numbers, OptimStateKeyType::kParamName,
                                                 *reference.module, reference.optimizer.get());
  EXPECT_THAT(params(names, 0), ElementsAre("b.bias", "b.weight", "empty", "scale", "spare",
                                            "unused.bias", "unused.weight"));
  EXPECT_THAT(params(names, 1), ElementsAre("a.bias", "a.weight"));
  EXPECT_EQ(names.at("state").dict().at("a.weight").dict().at("exp_avg").as_tensor()->sizes(),
            reference.module->a->weight.sizes());
  const StateDict back = rekey_optim_state_dict(names, OptimStateKeyType::kParamId,
                                                *reference.module, reference.optimizer.get());
  EXPECT_EQ(keys_of(back.at("state").dict()), keys_of(numbers.at("state").dict()));
  EXPECT_THAT(params(back, 1), ElementsAre("#7", "#8"));
  // By the model's order: a's come after its own three.
  const StateDict by_model =
      rekey_optim_state_dict(names, OptimStateKeyType::kParamId, *reference.module);
  EXPECT_THAT(params(by_model, 1), ElementsAre("#3", "#4"));
  // Keys of that type stay, in their order.
  EXPECT_THAT(
      params(rekey_optim_state_dict(by_model, OptimStateKeyType::kParamId, *reference.module), 1),
      ElementsAre("#3", "#4"));
}

TEST(OptimStateFamily, keys_that_are_not_the_models_are_named) {
  Reference reference("AdamW");
  reference.train(0, 1);
  StateDict names = reference.state();
  names.at("state").dict().set("c.weight", StateDict());
  names.at("state").dict().set(7, StateDict());
  EXPECT_THAT(error_of([&] {
                rekey_optim_state_dict(names, OptimStateKeyType::kParamId, *reference.module);
              }),
              AllOf(HasSubstr("parameter 'c.weight' is not in the model"),
                    HasSubstr("parameter '7' is not a key of the same type as the others")));
  StateDict numbers = optimizer_state_dict(*reference.optimizer);
  numbers.at("state").dict().set(9, StateDict());
  EXPECT_THAT(error_of([&] {
                rekey_optim_state_dict(numbers, OptimStateKeyType::kParamName, *reference.module);
              }),
              HasSubstr("parameter '9' is not in the model"));
  Odd other;
  EXPECT_THAT(error_of([&] {
                rekey_optim_state_dict(numbers, OptimStateKeyType::kParamName, *other,
                                       reference.optimizer.get());
              }),
              HasSubstr("parameter 0 of the optimizer is not in the model"));
}

TEST(StateSkeleton, every_kind_of_value_comes_back) {
  const StateDict dict{
      {"none", StateValue()},
      {"flags", StateList{true, false}},
      {-5, StateTuple{{0.1, -0.0, StateDict{{"", "two words 3 "}}}}},
      {"large", std::int64_t{-9007199254740993}},
      {"step", torch::tensor(3.5, torch::kDouble)},
      {"matrix", torch::ones({2, 0, 3}, torch::kBFloat16)},
  };
  const StateDict found = skeleton_of(skeleton_text(dict)).dict();
  EXPECT_EQ(keys_of(found), keys_of(dict));
  EXPECT_TRUE(found.at("none").is_none());
  EXPECT_TRUE(*(*found.at("flags").as_list())[0].as_bool());
  EXPECT_FALSE(*(*found.at("flags").as_list())[1].as_bool());
  const StateList& items = found.at(-5).as_tuple()->items;
  EXPECT_EQ(*items[0].as_double(), 0.1);
  EXPECT_TRUE(std::signbit(*items[1].as_double()));
  EXPECT_EQ(*items[2].dict().at("").as_string(), "two words 3 ");
  EXPECT_EQ(*found.at("large").as_int(), -9007199254740993);
  EXPECT_EQ(found.at("step").as_tensor()->item<double>(), 3.5);
  EXPECT_EQ(found.at("step").as_tensor()->scalar_type(), torch::kDouble);
  const Tensor& matrix = *found.at("matrix").as_tensor();
  EXPECT_TRUE(matrix.is_meta());
  EXPECT_EQ(matrix.sizes(), (std::vector<std::int64_t>{2, 0, 3}));
  EXPECT_EQ(matrix.scalar_type(), torch::kBFloat16);
}

}  // namespace
}  // namespace fsdp
