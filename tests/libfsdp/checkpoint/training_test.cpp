// SPDX-License-Identifier: Apache-2.0
// Training that continues from a checkpoint equals uninterrupted training, to the bit.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/optim_state_dict.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

using test::Gpt;
using test::spawn_ranks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model, its optimizer, and steps that are the same everywhere.
struct Trained {
  explicit Trained(const Group& group, FsdpOptions options = {}, std::uint64_t seed = 1)
      : module(2),
        sharded(module, with(std::move(options), group, module, seed)),
        optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01)) {
    state.model = &sharded;
    state.optimizers = {&optimizer};
  }

  void step(std::uint64_t number) {
    // Every rank has the same batch, so the number of ranks changes only sums.
    const auto tokens = random_tokens({2, 6}, 53, number);
    test::next_token_loss(sharded.forward(tokens), tokens).backward();
    optimizer.step();
    optimizer.zero_grad();
  }

  // Returns all of the state, whole.
  StateDict whole() {
    const StateDictTypeScope scope(sharded, StateDictType::kFull);
    return {{"model", sharded.state_dict()}, {"optimizer", optim_state_dict(sharded, optimizer)}};
  }

  Gpt module;
  FullyShardedDataParallel<Gpt> sharded;
  torch::optim::AdamW optimizer;
  TrainingState state;

 private:
  static FsdpOptions with(FsdpOptions options, const Group& group, Gpt& module,
                          std::uint64_t seed) {
    torch::manual_seed(seed);
    fill_parameters(*module);
    options.process_group = group;
    options.device_id = test::device_id_of_rank(group->rank());
    options.auto_wrap_policy = module_wrap_policy<test::BlockImpl>();
    if (!options.node_size) options.node_size = group->size() % 2 == 0 ? 2 : 1;
    if (seed != 1) {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : module->parameters()) parameter.fill_(static_cast<double>(seed));
    }
    return options;
  }
};

void expect_same(const StateValue& a, const StateValue& b, const std::string& key) {
  ASSERT_STREQ(a.kind_name(), b.kind_name()) << key;
  if (const auto* dict = a.as_dict()) {
    ASSERT_EQ(dict->size(), b.as_dict()->size()) << key;
    for (const auto& [name, value] : dict->entries())
      expect_same(value, b.as_dict()->at(name), key + "." + text_of(name));
  } else if (const auto* tensor = a.as_tensor()) {
    EXPECT_EQ(tensor->scalar_type(), b.as_tensor()->scalar_type()) << key;
    EXPECT_TRUE(at::equal(tensor->cpu(), b.as_tensor()->cpu())) << key;
  } else if (const auto* list = a.as_list()) {
    ASSERT_EQ(list->size(), b.as_list()->size()) << key;
    for (std::size_t i = 0; i < list->size(); ++i)
      expect_same((*list)[i], (*b.as_list())[i], key + "." + std::to_string(i));
  }
}

class Training : public ::testing::Test {
 protected:
  // Makes three steps, a checkpoint, two more steps; returns rank 0's state then.
  StateDict trained(int ranks, const FsdpOptions& options = {}) {
    StateDict result;
    spawn_ranks(ranks, [&](const Group& group) {
      Trained run(group, options);
      for (std::uint64_t i = 0; i < 3; ++i) run.step(i);
      run.state.extra["step"] = 3;
      run.state.extra["note"] = StateDict{{"seen", at::arange(4)}};
      save(folder(), run.state);
      save_file(file(), run.state);
      const StateDict then = run.whole();
      if (group->rank() == 0) result = then;
    });
    return result;
  }
  std::filesystem::path folder() const { return dir_.path() / "step-3"; }
  std::filesystem::path file() const { return dir_.path() / "step-3.ckpt"; }

  test::TempDir dir_;
};

TEST_F(Training, state_comes_back_at_any_number_of_ranks_from_a_folder_and_from_a_file) {
  const StateDict expected = trained(3);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& path : {folder(), file()}) {
      SCOPED_TRACE(path.filename().string() + " at " + std::to_string(ranks) + " ranks");
      spawn_ranks(ranks, [&](const Group& group) {
        Trained run(group, {}, 2);
        run.step(9);
        const LoadReport report = load(path, run.state);
        EXPECT_TRUE(report.same_keys() && report.cast.empty());
        expect_same(expected, run.whole(), "");
        EXPECT_EQ(*run.state.extra.at("step").as_int(), 3);
        EXPECT_EQ(*run.state.extra.at("epoch").as_int(), 0);
        EXPECT_TRUE(
            at::equal(*run.state.extra.at("note").dict().at("seen").as_tensor(), at::arange(4)));
      });
    }
  }
}

TEST_F(Training, goes_on_as_if_it_had_not_stopped) {
  spawn_ranks(2, [&](const Group& group) {
    Trained first(group);
    for (std::uint64_t i = 0; i < 3; ++i) first.step(i);
    save(folder(), first.state);
    Trained second(group, {}, 2);
    load(folder(), second.state);
    for (std::uint64_t i = 3; i < 6; ++i) {
      first.step(i);
      second.step(i);
    }
    expect_same(first.whole(), second.whole(), "");
  });
}

TEST_F(Training, strategies_and_flat_parameters_read_one_anothers_checkpoints) {
  FsdpOptions hybrid;
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  FsdpOptions flat;
  flat.use_orig_params = false;
  FsdpOptions orig;
  orig.use_orig_params = true;
  for (const auto& from : {hybrid, flat, orig}) {
    std::filesystem::remove_all(folder());
    std::filesystem::remove(file());
    const StateDict expected = trained(4, from);
    for (const auto& to : {hybrid, flat, orig}) {
      spawn_ranks(4, [&](const Group& group) {
        Trained run(group, to, 2);
        load(folder(), run.state);
        expect_same(expected.at("model"), run.whole().at("model"), "model");
        expect_same(expected.at("optimizer").dict().at("state"),
                    run.whole().at("optimizer").dict().at("state"), "optimizer");
      });
    }
  }
}

TEST_F(Training, an_optimizer_that_has_not_stepped_comes_back_as_one) {
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group);
    save(folder(), run.state);
    save_file(file(), run.state);
  });
  for (const int ranks : {1, 3}) {
    for (const auto& path : {folder(), file()}) {
      SCOPED_TRACE(path.filename().string() + " at " + std::to_string(ranks) + " ranks");
      spawn_ranks(ranks, [&](const Group& group) {
        Trained fresh(group);
        Trained run(group, {}, 2);
        run.step(9);
        EXPECT_TRUE(load(path, run.state).same_keys());
        fresh.step(0);
        run.step(0);
        expect_same(fresh.whole(), run.whole(), "");
      });
    }
  }
}

TEST_F(Training, weights_alone_need_to_be_asked_for) {
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group);
    const StateDictTypeScope scope(run.sharded, StateDictType::kSharded);
    save(folder(), run.sharded.state_dict(), group);
    EXPECT_THAT(error_of([&] { load(folder(), run.state); }),
                HasSubstr("expected 1 optimizers in the checkpoint, found 0"));
    TrainingLoadOptions options;
    options.optimizers = false;
    Trained other(group, {}, 2);
    load(folder(), other.state, options);
    expect_same(run.whole().at("model"), other.whole().at("model"), "model");
  });
}

TEST_F(Training, an_optimizer_whose_state_lacks_a_parameter_says_which_at_any_number_of_ranks) {
  FsdpOptions options;
  options.use_orig_params = true;
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group, options);
    auto parameters = run.sharded.parameters();
    EXPECT_EQ(run.sharded.named_parameters().back().first, "blocks.1.down.bias");
    parameters.pop_back();
    torch::optim::AdamW lacking(parameters, torch::optim::AdamWOptions(0.01));
    run.state.optimizers = {&lacking};
    const auto tokens = random_tokens({2, 6}, 53, 0);
    test::next_token_loss(run.sharded.forward(tokens), tokens).backward();
    lacking.step();
    save(folder(), run.state);
  });
  for (const int ranks : {1, 3}) {
    spawn_ranks(ranks, [&](const Group& group) {
      Trained run(group, options);
      const std::string error = error_of([&] { load(folder(), run.state); });
      EXPECT_THAT(error, HasSubstr("'blocks.1.down.bias'"));
      EXPECT_THAT(error, HasSubstr("optimizer"));
    });
  }
}

TEST_F(Training, the_scale_of_losses_comes_back) {
  const GradScalerState last{512, 3, 0.25, 77, 5};
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group);
    GradScaler scaler;
    scaler.load_state(last);
    run.state.grad_scaler = &scaler;
    save(folder(), run.state);
    save_file(file(), run.state);
    GradScaler off({.enabled = false});
    run.state.grad_scaler = &off;
    save(dir_.path() / "off", run.state);
  });
  for (const auto& from : {folder(), file()}) {
    spawn_ranks(3, [&](const Group& group) {
      Trained run(group, {}, 7);
      GradScaler scaler;
      run.state.grad_scaler = &scaler;
      EXPECT_TRUE(load(from, run.state).same_keys());
      EXPECT_EQ(scaler.get_scale(), 512);
      EXPECT_EQ(scaler.state().growth_tracker, 5);
      EXPECT_EQ(scaler.state().growth_interval, 77);
      EXPECT_EQ(scaler.state().backoff_factor, 0.25);
      EXPECT_EQ(run.state.extra.find("FSDPPrecision"), nullptr);
    });
  }
  spawn_ranks(1, [&](const Group& group) {
    Trained run(group, {}, 7);
    GradScaler scaler;
    run.state.grad_scaler = &scaler;
    const auto from = dir_.path() / "off";
    EXPECT_THAT(error_of([&] { load(from, run.state); }), HasSubstr("gradient scaler"));
    TrainingLoadOptions loose;
    loose.strict = false;
    EXPECT_THAT(load(from, run.state, loose).missing, ElementsAre("FSDPPrecision"));
    EXPECT_EQ(scaler.get_scale(), 65536);
  });
}

TEST_F(Training, folders_above_are_made_and_a_lost_meta_file_is_said) {
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group);
    run.step(0);
    run.state.extra["step"] = 1;
    const auto folder = dir_.path() / "runs" / "a" / "step-1";
    save(folder, run.state);
    save_file(dir_.path() / "files" / "step-1.ckpt", run.state);
    EXPECT_TRUE(load(folder, run.state).missing.empty());
    if (group->rank() == 0) std::filesystem::remove(folder / "meta.pt");
    agree(group, "removal", [] {});
    EXPECT_THAT(load(folder, run.state).missing, ElementsAre("meta.pt"));
    TrainingLoadOptions without;
    without.extra = false;
    EXPECT_TRUE(load(folder, run.state, without).missing.empty());
  });
}

TEST_F(Training, several_models_come_back_each_with_its_optimizers) {
  // The discriminator has another shape, so that neither can be taken for the other.
  struct Both {
    explicit Both(const Group& group, std::uint64_t seed = 1)
        : generator(group, {}, seed),
          sharded(critic, of(group, *critic)),
          optimizer(sharded.parameters(), torch::optim::AdamOptions(0.1)) {
      generator.state.further = {{"critic", &sharded, {&optimizer}}};
      if (seed == 1) return;
      const torch::NoGradGuard no_grad;
      for (auto& shard : sharded.parameters()) shard.fill_(static_cast<double>(seed));
    }
    static FsdpOptions of(const Group& group, torch::nn::Module& module) {
      fill_parameters(module);
      FsdpOptions options;
      options.process_group = group;
      options.device_id = test::device_id_of_rank(group->rank());
      return options;
    }
    void step(std::uint64_t number) {
      generator.step(number);
      sharded.forward(random_values({4, 7}, number)).pow(2).sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    StateDict whole() {
      const StateDictTypeScope scope(sharded, StateDictType::kFull);
      StateDict result = generator.whole();
      result.set("critic", sharded.state_dict());
      result.set("its optimizer", optim_state_dict(sharded, optimizer));
      return result;
    }
    Trained generator;
    torch::nn::Linear critic{7, 3};
    FullyShardedDataParallel<torch::nn::Linear> sharded;
    torch::optim::Adam optimizer;
  };
  StateDict expected;
  spawn_ranks(3, [&](const Group& group) {
    Both run(group);
    for (std::uint64_t i = 0; i < 2; ++i) run.step(i);
    run.generator.state.extra["step"] = 3;
    save(folder(), run.generator.state);
    save_file(file(), run.generator.state);
    const StateDict then = run.whole();
    if (group->rank() == 0) expected = then;
  });
  for (const int ranks : {1, 2}) {
    for (const auto& path : {folder(), file()}) {
      SCOPED_TRACE(path.filename().string() + " at " + std::to_string(ranks) + " ranks");
      spawn_ranks(ranks, [&](const Group& group) {
        Both run(group, 2);
        run.step(9);
        const LoadReport report = load(path, run.generator.state);
        EXPECT_TRUE(report.same_keys() && report.cast.empty());
        expect_same(expected, run.whole(), "");
        EXPECT_EQ(*run.generator.state.extra.at("step").as_int(), 3);
        EXPECT_EQ(run.generator.state.extra.find("critic"), nullptr);
        // One of the models alone, from a file of both.
        Trained alone(group, {}, 3);
        TrainingLoadOptions lenient;
        lenient.strict = false;
        const LoadReport partly = load(path, alone.state, lenient);
        expect_same(expected.at("model"), alone.whole().at("model"), "alone");
        EXPECT_FALSE(partly.unexpected.empty());
      });
    }
  }
  spawn_ranks(1, [&](const Group& group) {
    Both run(group);
    TrainingState& state = run.generator.state;
    for (const char* name : {"", "a.b", "model", "optimizer_0", "step", "epoch"}) {
      state.extra["step"] = 3;
      state.further.front().name = name;
      EXPECT_THAT(error_of([&] { save(folder(), state); }), HasSubstr("TrainingState::further: '"))
          << name;
    }
    state.further.front().name = "other";
    EXPECT_THAT(error_of([&] { load(folder(), state); }),
                HasSubstr("other: expected one model in the checkpoint, found 0"));
  });
}

TEST_F(Training, is_saved_while_it_goes_on) {
  StateDict expected;
  spawn_ranks(2, [&](const Group& group) {
    Trained run(group);
    AsyncSaver saver(group);
    for (std::uint64_t i = 0; i < 3; ++i) run.step(i);
    const StateDict then = run.whole();
    if (group->rank() == 0) expected = then;
    saver.async_save(folder(), run.state);
    for (std::uint64_t i = 3; i < 6; ++i) run.step(i);
    saver.wait();
    EXPECT_TRUE(saver.done());
    Trained other(group, {}, 2);
    load(folder(), other.state);
    expect_same(expected, other.whole(), "");
    // A failure is reported once: the folder exists.
    saver.async_save(folder(), run.state);
    EXPECT_THAT(error_of([&] { saver.wait(); }), HasSubstr("SaveOptions::overwrite replaces it"));
    saver.wait();
    SaveOptions options;
    options.overwrite = true;
    saver.async_save(folder(), run.state, options);
    saver.async_save(folder(), run.state, options);
  });
}

}  // namespace
}  // namespace fsdp
