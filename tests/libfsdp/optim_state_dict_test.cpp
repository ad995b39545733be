// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/optim_state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/comm/collectives.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/state/trained.h"

namespace fsdp {
using namespace internal;
namespace {

using test::expect_close;
using test::expect_state;
using test::Odd;
using test::Reference;
using test::Sharded;
using test::TrainingCase;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using torch::Tensor;

constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard,
    ShardingStrategy::kHybridShardZero2};

// Returns every optimizer on every number of ranks with either kind of parameters, and every
// strategy.
std::vector<std::pair<int, TrainingCase>> cases() {
  std::vector<std::pair<int, TrainingCase>> result;
  for (const std::string& optimizer : test::optimizer_names()) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const bool use_orig_params : {false, true})
        result.push_back({world_size, {optimizer, use_orig_params}});
    }
  }
  for (const ShardingStrategy strategy : kStrategies) {
    for (const bool use_orig_params : {false, true})
      result.push_back({4, {"fused AdamW", use_orig_params, strategy}});
  }
  return result;
}

std::string describe(int world_size, const TrainingCase& test) {
  return test.optimizer + (test.use_orig_params ? " original " : " flat ") +
         name_of(test.strategy) + " on " + std::to_string(world_size);
}

std::vector<std::string> keys_of(const StateDict& dict) {
  std::vector<std::string> keys;
  for (const auto& item : dict.entries()) keys.push_back(text_of(item.first));
  return keys;
}

const StateDict& group(const StateDict& dict, std::size_t number) {
  return (*dict.at("param_groups").as_list())[number].dict();
}

StateDict& group(StateDict& dict, std::size_t number) {
  return (*dict.at("param_groups").as_list())[number].dict();
}

std::vector<std::string> params(const StateDict& dict, std::size_t number) {
  std::vector<std::string> names;
  for (const StateValue& name : *group(dict, number).at("params").as_list())
    names.push_back(*name.as_string());
  return names;
}

TEST(OptimStateDict, whole_state_is_that_of_the_unsharded_optimizer) {
  for (const auto& [world_size, test] : cases()) {
    SCOPED_TRACE(describe(world_size, test));
    spawn_ranks(world_size, [&, &test = test](const Group& ranks) {
      Reference reference(test.optimizer);
      reference.train(0, 3);
      Sharded sharded(ranks, test);
      sharded.train(0, 3);
      const StateDict state = optim_state_dict(sharded.model, *sharded.optimizer);
      expect_state(state, reference.state());
      EXPECT_EQ(group(state, 1).at("lr").number(), group(reference.state(), 1).at("lr").number());
      EXPECT_THAT(params(state, 0), UnorderedElementsAre("scale", "empty", "spare", "b.weight",
                                                         "b.bias", "unused.weight", "unused.bias"));
      EXPECT_THAT(params(state, 1), ElementsAre("a.weight", "a.bias"));
      // That unit was not used; Adagrad starts with a state for everything.
      EXPECT_EQ(state.at("state").dict().find("unused.weight") != nullptr,
                test.optimizer == "Adagrad");
    });
  }
}

// Trains on one number of ranks, continues on another with the other kind of parameters.
void expect_resumed(int from, int to, const TrainingCase& test) {
  SCOPED_TRACE(describe(from, test) + ", then on " + std::to_string(to));
  StateDict model_state;
  StateDict state;
  spawn_ranks(from, [&](const Group& ranks) {
    Sharded sharded(ranks, test);
    sharded.train(0, 3);
    FullStateDictConfig config;
    config.rank0_only = true;
    FullOptimStateDictConfig optim_config;
    optim_config.rank0_only = true;
    set_state_dict_type(sharded.model, StateDictType::kFull, config, optim_config);
    const StateDict weights = sharded.model.state_dict();
    const StateDict whole = optim_state_dict(sharded.model, *sharded.optimizer);
    EXPECT_EQ(weights.empty(), ranks->rank() != 0);
    EXPECT_EQ(whole.empty(), ranks->rank() != 0);
    if (ranks->rank() != 0) return;
    model_state = weights;
    state = whole;
  });
  spawn_ranks(to, [&](const Group& ranks) {
    TrainingCase other = test;
    other.use_orig_params = !test.use_orig_params;
    Sharded sharded(ranks, other);
    sharded.train(7, 8);  // its earlier state must be replaced
    sharded.model.load_state_dict(model_state);
    load_optimizer_state_dict(*sharded.optimizer,
                              optim_state_dict_to_load(sharded.model, *sharded.optimizer, state));
    sharded.train(3, 6);
    Reference reference(test.optimizer);
    reference.train(0, 6);
    const StateDict weights = sharded.model.state_dict();
    for (const auto& item : reference.module->named_parameters()) {
      // Weight decay moves unused parameters beside used ones.
      if (item.key() == "spare") continue;
      expect_close(*weights.at(item.key()).as_tensor(), item.value(), item.key());
    }
    expect_state(optim_state_dict(sharded.model, *sharded.optimizer), reference.state());
  });
}

TEST(OptimStateDict, training_goes_on_at_another_number_of_ranks) {
  for (const std::string& optimizer : test::optimizer_names()) {
    expect_resumed(2, 3, {optimizer, false});
    expect_resumed(4, 1, {optimizer, true});
  }
  expect_resumed(1, 4, {"AdamW", false, ShardingStrategy::kHybridShard});
  expect_resumed(4, 2, {"Adam", true, ShardingStrategy::kNoShard});
}

// Compares the optimizers' states on this rank, element by element.
void expect_same_optimizers(const torch::optim::Optimizer& found,
                            const torch::optim::Optimizer& expected) {
  const StateDict a = optimizer_state_dict(found);
  const StateDict b = optimizer_state_dict(expected);
  ASSERT_EQ(a.at("state").dict().size(), b.at("state").dict().size());
  for (const auto& [id, entry] : b.at("state").dict().entries()) {
    for (const auto& [name, value] : entry.dict().entries())
      EXPECT_TRUE(torch::equal(*a.at("state").dict().at(id).dict().at(name).as_tensor(),
                               *value.as_tensor()))
          << text_of(id) << ' ' << text_of(name);
  }
}

TEST(OptimStateDict, sharded_and_local_state_goes_back_where_it_came_from) {
  for (const StateDictType type : {StateDictType::kSharded, StateDictType::kLocal}) {
    for (const auto& [world_size, test] : cases()) {
      if (world_size == 1 || world_size == 3) continue;
      SCOPED_TRACE(describe(world_size, test));
      spawn_ranks(world_size, [&, &test = test](const Group& ranks) {
        Sharded from(ranks, test);
        from.train(0, 2);
        Sharded into(ranks, test);
        set_state_dict_type(from.model, type);
        const StateDict state = optim_state_dict(from.model, *from.optimizer);
        optim_state_dict_to_load(into.model, *into.optimizer, state, /*load_directly=*/true);
        expect_same_optimizers(*into.optimizer, *from.optimizer);
        // A rank that leaves too early would be missed by one that still makes its groups.
        barrier(ranks, "end of the test");
      });
    }
  }
}

TEST(OptimStateDict, sharded_state_is_this_ranks_rows) {
  for (const bool use_orig_params : {false, true}) {
    spawn_ranks(3, [&](const Group& ranks) {
      Sharded sharded(ranks, {"AdamW", use_orig_params});
      sharded.train(0, 1);
      const StateDict whole = optim_state_dict(sharded.model, *sharded.optimizer);
      set_state_dict_type(sharded.model, StateDictType::kSharded);
      const StateDict state = optim_state_dict(sharded.model, *sharded.optimizer);
      EXPECT_EQ(keys_of(state.at("state").dict()), keys_of(whole.at("state").dict()));
      for (const auto& [name, entry] : state.at("state").dict().entries()) {
        EXPECT_THAT(keys_of(entry.dict()), ElementsAre("step", "exp_avg", "exp_avg_sq"));
        const Tensor& step = *entry.dict().at("step").as_tensor();
        EXPECT_EQ(step.dim(), 0);
        EXPECT_EQ(step.scalar_type(), torch::kFloat);
        EXPECT_EQ(step.item<double>(), 1);
        const ShardedTensor& rows = *entry.dict().at("exp_avg").as_sharded();
        const Tensor& full = *whole.at("state").dict().at(name).dict().at("exp_avg").as_tensor();
        EXPECT_EQ(rows.part, ranks->rank());
        EXPECT_EQ(rows.layout.shape, full.sizes().vec()) << text_of(name);
        EXPECT_EQ(rows.local.sizes().vec(), rows.layout.shape_of(rows.part)) << text_of(name);
        EXPECT_TRUE(torch::equal(
            rows.local.reshape(-1),
            full.reshape({rows.layout.rows, rows.layout.row_numel})
                .narrow(0, rows.layout.first_row(rows.part), rows.layout.rows_of(rows.part))
                .reshape(-1)))
            << text_of(name);
      }
    });
  }
}

TEST(OptimStateDict, state_of_the_unsharded_optimizer_goes_into_a_sharded_one) {
  for (const std::string& optimizer : test::optimizer_names()) {
    for (const bool use_orig_params : {false, true}) {
      SCOPED_TRACE(optimizer);
      spawn_ranks(3, [&](const Group& ranks) {
        Reference reference(optimizer);
        reference.train(0, 3);
        Sharded sharded(ranks, {optimizer, use_orig_params});
        optim_state_dict_to_load(sharded.model, *sharded.optimizer, reference.state(), true);
        expect_state(optim_state_dict(sharded.model, *sharded.optimizer), reference.state());
      });
    }
  }
}

TEST(OptimStateDict, groups_are_matched_by_the_names_in_them) {
  spawn_ranks(2, [](const Group& ranks) {
    Reference reference("AdamW");
    reference.train(0, 1);
    StateDict state = reference.state();
    StateList& groups = *state.at("param_groups").as_list();
    std::swap(groups[0], groups[1]);
    groups[0].dict().set("weight_decay", 0.25);
    groups[0].dict().set("initial_lr", 0.5);  // like Python's schedulers
    Sharded sharded(ranks, {"AdamW", false});
    optim_state_dict_to_load(sharded.model, *sharded.optimizer, state, true);
    const StateDict loaded = optim_state_dict(sharded.model, *sharded.optimizer);
    EXPECT_EQ(group(loaded, 1).at("weight_decay").number(), 0.25);
    EXPECT_EQ(group(loaded, 0).at("weight_decay").number(), 0.1);
    EXPECT_EQ(group(loaded, 1).find("initial_lr"), nullptr);
  });
}

TEST(OptimStateDict, ignored_parameters_are_whole_and_frozen_ones_have_no_state) {
  for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
    spawn_ranks(2, [&](const Group& ranks) {
      Odd module = test::odd_module();
      module->a->bias.requires_grad_(false);
      // What is ignored stays where it is.
      module->b->to(test::device_of_rank(ranks->rank()));
      FsdpOptions options = test::options_for(ranks, {"AdamW", true});
      options.ignored_states = {module->b->weight};
      FullyShardedDataParallel<Odd> model(module, options);
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.01));
      test::odd_loss(model.forward(test::odd_input(0)), 0).backward();
      optimizer.step();
      set_state_dict_type(model, type);
      const StateDict state = optim_state_dict(model, optimizer);
      const StateDict& states = state.at("state").dict();
      EXPECT_EQ(states.find("a.bias"), nullptr);
      const Tensor* const average = states.at("b.weight").dict().at("exp_avg").as_tensor();
      ASSERT_NE(average, nullptr);
      EXPECT_TRUE(torch::allclose(average->cpu(), module->b->weight.grad().cpu() * 0.1));
      torch::optim::AdamW other(model.parameters(), torch::optim::AdamWOptions(0.1));
      optim_state_dict_to_load(model, other, state, true);
      expect_same_optimizers(other, optimizer);
    });
  }
}

// Tied parameters, and several dtypes.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    first = register_parameter("first", torch::full({3, 2}, 0.5));
    register_parameter("second", first);
    wide = register_parameter("wide", torch::full({2}, 0.25, torch::kDouble));
  }
  Tensor forward(const Tensor& x) { return x.matmul(first).to(torch::kDouble) * wide; }
  Tensor first, wide;
};
TORCH_MODULE(Mixed);

TEST(OptimStateDict, tied_parameters_go_by_any_name_and_dtypes_stay) {
  for (const bool use_orig_params : {false, true}) {
    spawn_ranks(2, [&](const Group& ranks) {
      FsdpOptions options;
      options.process_group = ranks;
      options.device_id = test::device_id_of_rank(ranks->rank());
      options.use_orig_params = use_orig_params;
      FullyShardedDataParallel<Mixed> model(Mixed(), options);
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1));
      model.forward(random_values({4, 3}, 1)).pow(2).sum().backward();
      optimizer.step();
      StateDict state = optim_state_dict(model, optimizer);
      StateDict& states = state.at("state").dict();
      EXPECT_THAT(keys_of(states), UnorderedElementsAre("first", "wide"));
      EXPECT_EQ(states.at("wide").dict().at("exp_avg").as_tensor()->scalar_type(), torch::kDouble);
      states.set("second", states.at("first"));
      states.erase("first");
      for (StateValue& name : *group(state, 0).at("params").as_list()) {
        if (*name.as_string() == "first") name = "second";
      }
      torch::optim::AdamW other(model.parameters(), torch::optim::AdamWOptions(0.2));
      optim_state_dict_to_load(model, other, state, true);
      expect_same_optimizers(other, optimizer);
    });
  }
}

TEST(OptimStateDict, everything_that_is_wrong_is_told_at_once) {
  spawn_ranks(2, [](const Group& ranks) {
    Reference reference("AdamW");
    reference.train(0, 2);
    StateDict state = reference.state();
    StateDict& states = state.at("state").dict();
    states.set("a.wieght", states.at("a.weight"));
    StateList& names = *(*state.at("param_groups").as_list())[1].dict().at("params").as_list();
    names = {StateValue("a.bias")};
    states.at("b.weight").dict().set("exp_avg", torch::ones({2, 5}));
    states.at("b.bias").dict().set("exp_avg_sq", 3);
    states.at("scale").dict().set("step", 1.5);
    Sharded sharded(ranks, {"AdamW", true});
    const auto load = [&](const StateDict& dict) {
      return error_of([&] { optim_state_dict_to_load(sharded.model, *sharded.optimizer, dict); });
    };
    const std::string error = load(state);
    for (const char* part :
         {"missing 'a.weight' (nearest: 'a.wieght')",
          "unexpected 'a.wieght', which the optimizer does not have (nearest: 'a.weight')",
          "'b.weight: exp_avg': expected the shape [1, 5], found [2, 5]",
          "'b.bias: exp_avg_sq': expected a tensor, found int",
          "scale: step: expected a count of steps, found 1.5"})
      EXPECT_THAT(error, HasSubstr(part));
    EXPECT_THAT(load(optimizer_state_dict(*reference.optimizer)),
                HasSubstr("group 0 holds numbers of parameters, expected names: see "
                          "rekey_optim_state_dict"));
    StateDict mixed = reference.state();
    StateList& groups = *mixed.at("param_groups").as_list();
    groups[0].dict().at("params").as_list()->push_back("a.bias");
    groups[1].dict().set("params", StateList{StateValue("a.weight")});
    EXPECT_THAT(load(mixed), HasSubstr("group 1 of the optimizer holds parameters of several "
                                       "groups: 'a.weight' of group 1, 'a.bias' of group 0"));
  });
}

TEST(OptimStateDict, a_flat_parameter_has_one_step) {
  spawn_ranks(2, [](const Group& ranks) {
    Reference reference("AdamW");
    reference.train(0, 2);
    StateDict state = reference.state();
    state.at("state").dict().at("a.bias").dict().set("step", 5);
    Sharded original(ranks, {"AdamW", true});
    optim_state_dict_to_load(original.model, *original.optimizer, state);
    Sharded flat(ranks, {"AdamW", false});
    EXPECT_THAT(
        error_of([&] { optim_state_dict_to_load(flat.model, *flat.optimizer, state); }),
        HasSubstr(
            "'a.bias' is at step 5 and 'a.weight' at step 2, but both lie in 'a._flat_param': "
            "set use_orig_params"));
  });
}

TEST(OptimStateDict, local_state_of_another_layout_is_refused) {
  std::vector<StateDict> of_two(2);
  spawn_ranks(2, [&](const Group& ranks) {
    Sharded sharded(ranks, {"AdamW", false});
    sharded.train(0, 1);
    set_state_dict_type(sharded.model, StateDictType::kLocal);
    of_two[static_cast<std::size_t>(ranks->rank())] =
        optim_state_dict(sharded.model, *sharded.optimizer);
  });
  spawn_ranks(3, [&](const Group& ranks) {
    Sharded sharded(ranks, {"AdamW", false});
    EXPECT_THAT(
        error_of([&] { optim_state_dict_to_load(sharded.model, *sharded.optimizer, of_two[0]); }),
        AllOf(HasSubstr("'a._flat_param': expected the layout 'rank "),
              HasSubstr("found 'rank 0 of 2: ")));
  });
}

TEST(OptimStateDict, parameters_of_another_module_are_refused) {
  spawn_ranks(2, [](const Group& ranks) {
    Sharded sharded(ranks, {"AdamW", true});
    Odd other;
    torch::optim::AdamW optimizer(other->parameters());
    EXPECT_THAT(error_of([&] { optim_state_dict(sharded.model, optimizer); }),
                AllOf(HasSubstr("make it from ShardedModule::parameters()"),
                      HasSubstr("parameter 3 of group 0, of shape [5, 7]")));
  });
}

TEST(OptimStateDict, ranks_whose_optimizers_differ_are_named) {
  spawn_ranks(2, [](const Group& ranks) {
    Sharded sharded(ranks, {"AdamW", true});
    sharded.train(0, 1);
    if (ranks->rank() == 1) sharded.optimizer->state().clear();
    EXPECT_THAT(error_of([&] { optim_state_dict(sharded.model, *sharded.optimizer); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("state of 'scale': step 1 exp_avg")));
  });
}

}  // namespace
}  // namespace fsdp
