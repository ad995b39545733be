// SPDX-License-Identifier: Apache-2.0
// State dicts of plain optimizers. state/optimizers.py compares them with Python's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/state/trained.h"

namespace fsdp {
namespace {

using test::Odd;
using test::Reference;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

StateDict& group(StateDict& dict, std::size_t number) {
  return (*dict.at("param_groups").as_list())[number].dict();
}

TEST(OptimizerStateDict, another_optimizer_goes_on_bit_by_bit) {
  for (const std::string& name : test::optimizer_names()) {
    SCOPED_TRACE(name);
    Reference first(name);
    first.train(0, 3);
    Reference second(name);
    second.train(10, 12);
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : second.module->named_parameters())
        item.value().copy_(first.module->named_parameters()[item.key()]);
    }
    StateDict state = optimizer_state_dict(*first.optimizer);
    // Both optimizers write to their state.
    for (auto& [id, entry] : state.at("state").dict().entries()) {
      for (auto& [key, value] : entry.dict().entries()) value = value.as_tensor()->clone();
    }
    load_optimizer_state_dict(*second.optimizer, state);
    first.train(3, 6);
    second.train(3, 6);
    for (const auto& item : first.module->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), second.module->named_parameters()[item.key()]))
          << item.key();
  }
}

TEST(OptimizerStateDict, every_option_is_taken) {
  for (const std::string& name : test::optimizer_names()) {
    SCOPED_TRACE(name);
    Reference from(name);
    StateDict wanted = optimizer_state_dict(*from.optimizer);
    std::size_t changed = 0;
    for (auto& [key, value] : group(wanted, 1).entries()) {
      if (value.as_double() != nullptr) {
        value = *value.as_double() * 0.5 + 0.125;
        ++changed;
      } else if (key == StateKey("nesterov") || key == StateKey("amsgrad") ||
                 key == StateKey("centered")) {
        value = !*value.as_bool();
        ++changed;
      } else if (key == StateKey("betas")) {
        value = StateTuple{{0.25, 0.75}};
        ++changed;
      }
    }
    EXPECT_GE(changed, 5u);
    Reference into(name);
    load_optimizer_state_dict(*into.optimizer, wanted);
    StateDict found = optimizer_state_dict(*into.optimizer);
    for (const auto& [key, value] : group(wanted, 1).entries()) {
      const StateValue& other = group(found, 1).at(key);
      if (value.as_double() != nullptr) {
        EXPECT_EQ(*other.as_double(), *value.as_double()) << text_of(key);
      }
      if (value.as_bool() != nullptr) {
        EXPECT_EQ(*other.as_bool(), *value.as_bool()) << text_of(key);
      }
      if (value.as_tuple() != nullptr) {
        EXPECT_EQ(*other.as_tuple()->items[1].as_double(), 0.75);
      }
    }
  }
}

TEST(OptimizerStateDict, tensors_are_taken_over_where_they_fit) {
  Reference from("AdamW");
  from.train(0, 1);
  StateDict state = optimizer_state_dict(*from.optimizer);
  StateDict& weight = state.at("state").dict().at(7).dict();
  const Tensor average = weight.at("exp_avg").as_tensor()->clone();
  weight.set("exp_avg", average);
  weight.set("exp_avg_sq", weight.at("exp_avg_sq").as_tensor()->to(torch::kDouble));
  weight.set("step", 12);
  state.at("state").dict().at(8).dict().set("step", 5.0);
  Reference into("AdamW");
  load_optimizer_state_dict(*into.optimizer, state);
  const StateDict loaded = optimizer_state_dict(*into.optimizer);
  const StateDict& found = loaded.at("state").dict().at(7).dict();
  EXPECT_TRUE(found.at("exp_avg").as_tensor()->is_alias_of(average));
  EXPECT_EQ(found.at("exp_avg_sq").as_tensor()->scalar_type(), torch::kFloat);
  EXPECT_EQ(found.at("step").number(), 12);
  EXPECT_EQ(loaded.at("state").dict().at(8).dict().at("step").number(), 5);
}

TEST(OptimizerStateDict, everything_that_is_wrong_is_told_and_nothing_changes) {
  Reference from("Adam");
  from.train(0, 2);
  Reference into("Adam");
  into.train(0, 1);
  StateDict state = optimizer_state_dict(*from.optimizer);
  StateDict& states = state.at("state").dict();
  states.at(7).dict().set("exp_avg", torch::ones({7, 5}));
  states.at(8).dict().set("square_avg", torch::ones({5}));
  states.at(8).dict().erase("max_exp_avg_sq");
  states.at(0).dict().erase("step");
  states.set(40, StateDict());
  group(state, 0).set("maximize", true);
  group(state, 0).set("lr", 77.0);
  group(state, 1).set("betas", StateTuple{{0.5}});
  const std::string error = error_of([&] { load_optimizer_state_dict(*into.optimizer, state); });
  for (const char* part :
       {"the state dict does not fit the optimizer (Adam):",
        "'state of parameter 7: exp_avg': expected the shape [5, 7], found [7, 5]",
        "state of parameter 8: 'square_avg' is not a value that Adam keeps",
        "state of parameter 8 has no usable max_exp_avg_sq", "state of parameter 0 has no step",
        "'40' has a state, but is not in any param group",
        "group 0: Adam in C++ does not support maximize=True",
        "group 1: option betas of Adam: expected two numbers, found tuple"})
    EXPECT_THAT(error, HasSubstr(part));
  StateDict now = optimizer_state_dict(*into.optimizer);
  EXPECT_EQ(group(now, 0).at("lr").number(), 0.01);
  EXPECT_EQ(now.at("state").dict().at(8).dict().at("step").number(), 1);
}

TEST(OptimizerStateDict, groups_and_parameters_must_be_as_many) {
  Reference from("SGD");
  Reference into("SGD");
  StateDict state = optimizer_state_dict(*from.optimizer);
  group(state, 1).set("params", StateList{7});
  EXPECT_THAT(error_of([&] { load_optimizer_state_dict(*into.optimizer, state); }),
              HasSubstr("group 1: expected 2 parameters, found 1"));
  group(state, 1).set("params", StateList{"a.weight", "a.bias"});
  EXPECT_THAT(error_of([&] { load_optimizer_state_dict(*into.optimizer, state); }),
              HasSubstr("group 1: expected numbers of parameters, found str"));
  state.at("param_groups").as_list()->pop_back();
  EXPECT_THAT(error_of([&] { load_optimizer_state_dict(*into.optimizer, state); }),
              HasSubstr("expected 2 param groups, found 1"));
}

TEST(OptimizerStateDict, decay_is_coupled_or_not) {
  Reference adam("Adam");
  Reference adamw("AdamW");
  EXPECT_THAT(error_of([&] {
                load_optimizer_state_dict(*adam.optimizer, optimizer_state_dict(*adamw.optimizer));
              }),
              HasSubstr("Adam in C++ does not support decoupled_weight_decay=True"));
  EXPECT_THAT(error_of([&] {
                load_optimizer_state_dict(*adamw.optimizer, optimizer_state_dict(*adam.optimizer));
              }),
              HasSubstr("AdamW in C++ does not support decoupled_weight_decay=False"));
}

TEST(OptimizerStateDict, adagrad_begins_with_a_state) {
  Reference from("Adagrad");
  from.train(0, 1);
  StateDict state = optimizer_state_dict(*from.optimizer);
  state.at("state").dict().erase(7);
  Reference into("Adagrad");
  into.train(0, 3);
  load_optimizer_state_dict(*into.optimizer, state);
  const StateDict loaded = optimizer_state_dict(*into.optimizer);
  const StateDict& fresh = loaded.at("state").dict().at(7).dict();
  EXPECT_EQ(fresh.at("step").number(), 0);
  EXPECT_TRUE(torch::equal(*fresh.at("sum").as_tensor(), torch::full({5, 7}, 0.2)));
  into.train(3, 4);
}

TEST(OptimizerStateDict, other_optimizers_are_refused_by_name) {
  Odd module;
  torch::optim::LBFGS optimizer(module->parameters());
  EXPECT_THAT(error_of([&] { optimizer_state_dict(optimizer); }),
              AllOf(HasSubstr("torch::optim::LBFGS"), HasSubstr("SGD, Adam, AdamW, Adagrad")));
}

}  // namespace
}  // namespace fsdp
