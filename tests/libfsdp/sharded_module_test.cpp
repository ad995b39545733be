// SPDX-License-Identifier: Apache-2.0
// Features of a sharded module besides training: parameters, norms, full parameters, dtypes,
// memory.
#include <cmath>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/agree.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/meta_device.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::HasSubstr;
using namespace test;  // the modules
using Sharded = FullyShardedDataParallel<Gpt>;

// Two layers of two dtypes.
struct DoubledImpl : nn::Module {
  DoubledImpl()
      : a(register_module("a", nn::Linear(4, 5))), b(register_module("b", nn::Linear(5, 3))) {
    b->to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x)).to(torch::kDouble)).sum(); }
  nn::Linear a, b;
};
TORCH_MODULE(Doubled);

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Body>
void on_worlds(const std::vector<int>& sizes, const Body& body) {
  for (const int size : sizes) {
    SCOPED_TRACE("world size " + std::to_string(size));
    spawn_ranks(size, body);
  }
}

FsdpOptions block_options(const Group& group) {
  return options_over(group, module_wrap_policy<BlockImpl>());
}

// ---- parameters

TEST(ShardedModule, parameters_are_rows_in_the_order_of_the_module) {
  on_worlds({1, 3}, [](const Group& group) {
    Gpt module = filled_gpt();
    const Gpt whole = filled_gpt();
    Sharded sharded(module, block_options(group));
    const auto named = sharded.named_parameters();
    std::size_t i = 0;
    for (const auto& item : whole->named_parameters()) {
      ASSERT_LT(i, named.size());
      EXPECT_EQ(named[i].first, item.key());
      // torch.chunk's rule.
      const auto chunks = item.value().chunk(group->size());
      const auto rank = static_cast<std::size_t>(group->rank());
      const Tensor expected = rank < chunks.size() ? chunks[rank] : item.value().narrow(0, 0, 0);
      EXPECT_TRUE(torch::equal(named[i].second, expected)) << item.key();
      EXPECT_TRUE(named[i].second.requires_grad());
      ++i;
    }
    EXPECT_EQ(i, named.size());
  });
}

TEST(ShardedModule, flat_parameters_are_one_a_unit_and_dtype) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    module->ln->to(torch::kDouble);
    FsdpOptions options = block_options(group);
    options.use_orig_params = false;
    Sharded sharded(module, options);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : sharded.named_parameters()) {
      names.push_back(name);
      EXPECT_EQ(tensor.dim(), 1);
    }
    EXPECT_THAT(names, ::testing::ElementsAre("_flat_param_Float", "_flat_param_Double",
                                              "blocks.0._flat_param", "blocks.1._flat_param"));
  });
}

TEST(ShardedModule, ignored_modules_and_states_stay_whole_and_unreduced) {
  for (const bool states : {false, true}) {
    spawn_ranks(2, [&](const Group& group) {
      Gpt module = filled_gpt();
      // What is ignored stays where it is.
      module->ln->to(test::device_of_rank(group->rank()));
      FsdpOptions options = block_options(group);
      if (states) {
        options.ignored_states = module->ln->parameters();
      } else {
        options.ignored_modules = {module->ln.ptr()};
      }
      Sharded sharded(module, options);
      EXPECT_EQ(module->ln->weight.numel(), 24);
      EXPECT_EQ(sharded.named_parameters().back().first, "ln.bias");
      gpt_loss(sharded, group->rank(), 0).backward();
      // Its gradient is the one of this rank's own data.
      Gpt alone = filled_gpt();
      const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(group->rank()));
      next_token_loss(alone->forward(tokens), tokens).backward();
      EXPECT_LE(distance(module->ln->weight.grad(), alone->ln->weight.grad()), 2e-6);
    });
  }
}

TEST(ShardedModule, rank_0_gives_everyone_its_states) {
  on_worlds({2, 4}, [](const Group& group) {
    Recurrent module;  // every rank has its own random values
    FsdpOptions options = options_over(group, module_wrap_policy<nn::LSTMImpl>());
    options.sync_module_states = true;
    if (group->size() == 4) {
      options.sharding_strategy = ShardingStrategy::kHybridShard;
      options.node_size = 2;
    }
    const Tensor own = module->head->weight.detach().clone();
    FullyShardedDataParallel<Recurrent> sharded(module, options);
    const FullParams scope = sharded.summon_full_params({.writeback = false});
    std::ostringstream values;
    for (const auto& parameter : module->parameters())
      values << parameter.detach().to(torch::kDouble).sum().item<double>() << ' ';
    require_same(group, "the states", {values.str()});
    EXPECT_TRUE(group->rank() != 0 || torch::equal(own, module->head->weight));
  });
}

TEST(ShardedModule, a_model_on_the_meta_device_is_given_values) {
  spawn_ranks(2, [](const Group& group) {
    const auto meta = [] {
      const MetaDevice scope;
      return Gpt(2, false);
    }();
    ASSERT_TRUE(meta->head->weight.is_meta());
    FsdpOptions options = block_options(group);
    options.param_init_fn = [](torch::nn::Module& module) {
      to_empty(module, torch::kCPU, /*recurse=*/false);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.fill_(0.125);
    };
    Sharded sharded(meta, options);
    for (const auto& parameter : sharded.parameters())
      EXPECT_TRUE(parameter.numel() == 0 || torch::all(parameter == 0.125).item<bool>());
    EXPECT_NEAR(gpt_loss(sharded, 0, 0).item<double>(), std::log(53.0), 1e-5);
  });
}

// ---- norms

TEST(ShardedModule, clipping_finds_the_norm_of_all_gradients) {
  for (const double p : {1.0, 2.0, 3.5, kInfinity}) {
    for (const bool orig : {false, true}) {
      on_worlds({1, 2, 4}, [&](const Group& group) {
        Gpt whole = filled_gpt();
        Tensor loss = torch::zeros({});
        for (int rank = 0; rank < group->size(); ++rank) {
          const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(rank));
          loss = loss + next_token_loss(whole->forward(tokens), tokens) / group->size();
        }
        loss.backward();
        const double expected = nn::utils::clip_grad_norm_(whole->parameters(), 0.25, p);
        FsdpOptions options = block_options(group);
        options.use_orig_params = orig;
        if (group->size() == 4) {
          options.sharding_strategy = ShardingStrategy::kHybridShard;
          options.node_size = 2;
        }
        Gpt module = filled_gpt();
        Sharded sharded(module, options);
        gpt_loss(sharded, group->rank(), 0).backward();
        const Tensor norm = sharded.clip_grad_norm_(0.25, p);
        EXPECT_EQ(norm.scalar_type(), torch::kFloat);
        EXPECT_NEAR(norm.item<double>(), expected, 2e-5 * expected) << p;
        if (!orig) return;
        const FullParams scope =
            sharded.summon_full_params({.writeback = false, .with_grads = true});
        EXPECT_LE(distance(module->head->weight.grad(), whole->head->weight.grad()), 2e-6);
      });
    }
  }
}

// What torch.nn.utils.clip_grad_norm_ of Python takes for them; that of C++ does not know them.
TEST(ShardedModule, norms_of_the_smallest_and_of_the_number_are_pythons) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    on_worlds({1, 2, 3}, [&](const Group& group) {
      FsdpOptions options = block_options(group);
      options.sharding_strategy = strategy;
      Gpt module = filled_gpt();
      Sharded sharded(module, options);
      gpt_loss(sharded, group->rank(), 0).backward();
      double least = kInfinity;
      double nonzero = 0;
      {
        const FullParams scope =
            sharded.summon_full_params({.writeback = false, .with_grads = true});
        for (const auto& parameter : module->parameters()) {
          least = std::min(least, parameter.grad().abs().min().item<double>());
          if (parameter.grad().abs().max().item<double>() != 0) ++nonzero;
        }
      }
      EXPECT_EQ(sharded.clip_grad_norm_(1e9, 0).item<double>(), nonzero);
      EXPECT_EQ(sharded.clip_grad_norm_(1e9, -kInfinity).item<double>(), least);
      for (const Tensor& shard : sharded.parameters()) {
        if (shard.numel() != 0) Tensor(shard.grad()).abs_().add_(1);
      }
      EXPECT_GE(sharded.clip_grad_norm_(0.5, -kInfinity).item<double>(), 1);
      sharded.zero_grad();
      EXPECT_EQ(sharded.clip_grad_norm_(1, -kInfinity).item<double>(), 0);
    });
  }
}

TEST(ShardedModule, the_norm_has_the_largest_dtype_of_the_gradients) {
  spawn_ranks(2, [](const Group& group) {
    FullyShardedDataParallel<Doubled> doubled(Doubled(), options_over(group));
    doubled.forward(random_values({3, 4}, 5)).backward();
    EXPECT_EQ(doubled.clip_grad_norm_(1.0).scalar_type(), torch::kDouble);
    FsdpOptions options = block_options(group);
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.keep_low_precision_grads = true;
    Sharded low(filled_gpt(), options);
    gpt_loss(low, group->rank(), 0).backward();
    EXPECT_EQ(low.clip_grad_norm_(1.0).scalar_type(), torch::kBFloat16);
  });
}

TEST(ShardedModule, buffers_keep_their_names) {
  spawn_ranks(1, [](const Group& group) {
    FullyShardedDataParallel<Zoo> sharded(Zoo(), options_over(group, always_wrap_policy()));
    std::vector<std::string> names;
    for (const auto& [name, buffer] : sharded.named_buffers()) names.push_back(name);
    EXPECT_THAT(names, ::testing::ElementsAre("batch.running_mean", "batch.running_var",
                                              "batch.num_batches_tracked"));
  });
}

TEST(ShardedModule, the_norm_without_gradients_is_zero) {
  spawn_ranks(2, [](const Group& group) {
    Sharded sharded(filled_gpt(), block_options(group));
    EXPECT_EQ(sharded.clip_grad_norm_(1.0).item<float>(), 0);
  });
}

// ---- full parameters

TEST(ShardedModule, summoned_parameters_are_whole_and_written_back) {
  on_worlds({1, 2, 3}, [](const Group& group) {
    Odd module;
    fill_parameters(*module);
    Odd whole;
    fill_parameters(*whole);
    FullyShardedDataParallel<Odd> sharded(module, options_over(group, always_wrap_policy()));
    {
      const FullParams scope = sharded.summon_full_params();
      const torch::NoGradGuard no_grad;
      for (const auto& item : whole->named_parameters()) {
        Tensor found = module->named_parameters()[item.key()];
        EXPECT_TRUE(torch::equal(found, item.value())) << item.key();
        found.add_(1);
      }
    }
    const FullParams scope = sharded.summon_full_params({.writeback = false});
    for (const auto& item : whole->named_parameters())
      EXPECT_TRUE(torch::equal(module->named_parameters()[item.key()], item.value() + 1));
  });
}

TEST(ShardedModule, without_writeback_nothing_stays) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, block_options(group));
    const double before = gpt_loss(sharded, 0, 0).item<double>();
    {
      const FullParams scope = sharded.summon_full_params({.writeback = false});
      const torch::NoGradGuard no_grad;
      module->head->weight.zero_();
    }
    EXPECT_EQ(gpt_loss(sharded, 0, 0).item<double>(), before);
  });
}

TEST(ShardedModule, summoning_may_leave_out_units_ranks_and_devices) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, block_options(group));
    {
      const FullParams scope = sharded.summon_full_params({.recurse = false, .writeback = false});
      EXPECT_EQ(module->head->weight.storage().nbytes(), 53 * 24 * sizeof(float));
      EXPECT_EQ(module->blocks->ptr<BlockImpl>(0)->up->weight.storage().nbytes(), 0);
    }
    const FullParams scope = sharded.summon_full_params(
        {.writeback = false, .rank0_only = true, .offload_to_cpu = true});
    EXPECT_EQ(module->head->weight.storage().nbytes() != 0, group->rank() == 0);
  });
}

TEST(ShardedModule, training_goes_on_after_summoning) {
  auto test = ShardedCase<Gpt>();
  test.build = [] { return filled_gpt(); };
  test.options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
  test.options.use_orig_params = true;
  test.loss = [](const auto& forward, int rank, int step) {
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
    return next_token_loss(forward(tokens), tokens);
  };
  test.after_step = [](Sharded& sharded, int) {
    sharded.apply([](torch::nn::Module& module) {
      for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.mul_(1);
    });
  };
  expect_same_training(test, {1, 2, 3});
}

TEST(ShardedModule, apply_writes_every_parameter_once) {
  spawn_ranks(3, [](const Group& group) {
    Gpt module = filled_gpt();
    Sharded sharded(module, block_options(group));
    sharded.apply([](torch::nn::Module& part) {
      for (auto& parameter : part.parameters(/*recurse=*/false)) parameter.fill_(0.5);
    });
    for (const auto& parameter : sharded.parameters())
      EXPECT_TRUE(parameter.numel() == 0 || torch::all(parameter == 0.5).item<bool>());
  });
}

TEST(ShardedModule, apply_comes_to_children_before_their_parents) {
  spawn_ranks(1, [](const Group& group) {
    Gpt module = filled_gpt(1);
    Sharded sharded(module, block_options(group));
    std::vector<std::string> seen;
    const ShardedModule& same =
        sharded.apply([&](torch::nn::Module& part) { seen.push_back(part.name()); });
    EXPECT_EQ(&same, &sharded);
    ASSERT_EQ(seen.size(), 12U);
    EXPECT_THAT(seen.back(), HasSubstr("Gpt"));
    const auto place = [&](const char* name) {
      return std::find_if(
                 seen.begin(), seen.end(),
                 [&](const std::string& text) { return text.find(name) != std::string::npos; }) -
             seen.begin();
    };
    EXPECT_LT(place("Linear"), place("Block"));
    EXPECT_LT(place("Block"), place("ModuleList"));
  });
}

TEST(ShardedModule, what_is_not_sharded_keeps_what_a_summon_wrote) {
  for (const bool mixed : {false, true}) {
    spawn_ranks(2, [&](const Group& group) {
      Gpt module = filled_gpt();
      FsdpOptions options = block_options(group);
      options.sharding_strategy = ShardingStrategy::kNoShard;
      if (mixed) options.mixed_precision.param_dtype = torch::kBFloat16;
      Sharded sharded(module, options);
      const auto write = [&](bool rank0_only, double value) {
        const FullParams scope =
            sharded.summon_full_params({.writeback = false, .rank0_only = rank0_only});
        const torch::NoGradGuard no_grad;
        if (!rank0_only || group->rank() == 0) module->ln->weight.fill_(value);
      };
      write(false, 0.25);
      write(true, 0.5);  // would make ranks differ
      for (const auto& [name, shard] : sharded.named_parameters()) {
        if (name == "ln.weight") {
          EXPECT_TRUE(torch::all(shard == 0.25).item<bool>());
        }
      }
    });
  }
}

TEST(ShardedModule, what_is_not_sharded_is_read_between_steps) {
  for (const bool mixed : {false, true}) {
    spawn_ranks(2, [&](const Group& group) {
      Gpt module = filled_gpt();
      const Tensor before = module->head->weight.detach().clone();
      FsdpOptions options = block_options(group);
      options.sharding_strategy = ShardingStrategy::kNoShard;
      if (mixed) options.mixed_precision.param_dtype = torch::kBFloat16;
      Sharded sharded(module, options);
      {
        const torch::NoGradGuard no_grad;
        EXPECT_EQ(distance(module->head->weight.clone(), before), 0);
        EXPECT_EQ(module->head->weight.mul(1).scalar_type(), torch::kFloat);
        EXPECT_EQ(distance(torch::stack({module->head->weight, module->head->weight})[1], before),
                  0);
        module->head->weight.mul_(2);
        EXPECT_EQ(distance(module->head->weight.clone(), before * 2), 0);
      }
      // A gradient of what is rounded in forward would be lost.
      if (mixed) {
        EXPECT_THAT(error_of([&] { (void)module->head->weight.norm(); }), HasSubstr("NoGradGuard"));
      }
      const auto rank = group->rank();
      const double found = gpt_loss(sharded, rank, 0).item<double>();
      sharded.load_state_dict(sharded.state_dict());
      EXPECT_EQ(gpt_loss(sharded, rank, 0).item<double>(), found);
    });
  }
}

// ---- dtypes

TEST(ShardedModule, the_first_loss_in_bfloat16_is_that_of_a_bfloat16_model) {
  on_worlds({1, 2, 3}, [](const Group& group) {
    Gpt low = filled_gpt();
    low->to(torch::kBFloat16);
    const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(group->rank()));
    const double expected = next_token_loss(low->forward(tokens), tokens).item<double>();
    Gpt module = filled_gpt();
    FsdpOptions options = block_options(group);
    options.mixed_precision.param_dtype = torch::kBFloat16;
    Sharded sharded(module, options);
    const Tensor loss = gpt_loss(sharded, group->rank(), 0);
    EXPECT_EQ(loss.item<double>(), expected);
    loss.backward();
    for (const auto& [name, parameter] : sharded.named_parameters()) {
      EXPECT_EQ(parameter.scalar_type(), torch::kFloat) << name;
      EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat) << name;
    }
  });
}

TEST(ShardedModule, gradients_may_be_reduced_and_kept_in_other_dtypes) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    Sharded exact(filled_gpt(), options);
    gpt_loss(exact, group->rank(), 0).backward();
    options.mixed_precision.reduce_dtype = torch::kBFloat16;
    options.mixed_precision.keep_low_precision_grads = true;
    Sharded low(filled_gpt(), options);
    gpt_loss(low, group->rank(), 0).backward();
    const auto left = exact.named_parameters();
    const auto right = low.named_parameters();
    for (std::size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].second.grad().scalar_type(), torch::kFloat);
      EXPECT_EQ(right[i].second.grad().scalar_type(), torch::kBFloat16);
      // The mean of two bfloat16 numbers, rounded once.
      EXPECT_TRUE(torch::equal(left[i].second.grad().to(torch::kBFloat16), right[i].second.grad()))
          << left[i].first;
    }
  });
}

TEST(ShardedModule, batch_norms_keep_their_precision_and_other_buffers_are_cast) {
  spawn_ranks(2, [](const Group& group) {
    Zoo module;
    fill_parameters(*module);
    module->conv->register_buffer("scale", torch::ones({2}));
    FsdpOptions options = options_over(group, module_wrap_policy<nn::GRUImpl>());
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    FullyShardedDataParallel<Zoo> sharded(module, options);
    EXPECT_THAT(sharded.unit_names(), ::testing::ElementsAre("", "batch", "gru"));
    EXPECT_EQ(module->batch->weight.scalar_type(), torch::kFloat);
    EXPECT_EQ(module->conv->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(module->batch->running_mean.scalar_type(), torch::kFloat);
    EXPECT_EQ(module->named_buffers()["conv.scale"].scalar_type(), torch::kBFloat16);
    EXPECT_EQ(module->batch->num_batches_tracked.scalar_type(), torch::kLong);
  });
}

TEST(ShardedModule, batch_norms_without_parameters_keep_their_precision) {
  spawn_ranks(2, [](const Group& group) {
    nn::Sequential module(nn::Linear(4, 3), nn::BatchNorm1d(nn::BatchNormOptions(3).affine(false)));
    FsdpOptions options = options_over(group, module_wrap_policy<nn::LinearImpl>());
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    FullyShardedDataParallel<nn::Sequential> sharded(module, options);
    for (const auto& [name, buffer] : sharded.named_buffers()) {
      if (name != "1.num_batches_tracked") {
        EXPECT_EQ(buffer.scalar_type(), torch::kFloat) << name;
      }
    }
    const Tensor x = random_values({5, 4}, static_cast<std::uint64_t>(group->rank()));
    sharded.forward(x.to(test::device_of_rank(group->rank()))).sum().backward();
  });
}

TEST(ShardedModule, parameters_of_several_dtypes_share_a_unit) {
  spawn_ranks(2, [](const Group& group) {
    const auto build = [] {
      Doubled module;
      fill_parameters(*module);
      return module;
    };
    Doubled whole = build();
    Doubled module = build();
    FullyShardedDataParallel<Doubled> sharded(module, options_over(group));
    const Tensor x = random_values({3, 4}, 5);
    whole->forward(x).backward();
    sharded.forward(x).backward();
    const FullParams scope = sharded.summon_full_params({.writeback = false, .with_grads = true});
    for (const auto& item : whole->named_parameters()) {
      const Tensor found = module->named_parameters()[item.key()];
      EXPECT_EQ(found.scalar_type(), item.value().scalar_type());
      EXPECT_TRUE(torch::equal(found.grad(), item.value().grad())) << item.key();
    }
  });
}

// ---- hooks, printing, memory

TEST(ShardedModule, a_communication_hook_replaces_the_reduction) {
  for (const bool sharded_strategy : {true, false}) {
    spawn_ranks(2, [&](const Group& group) {
      FsdpOptions options = block_options(group);
      if (!sharded_strategy) options.sharding_strategy = ShardingStrategy::kNoShard;
      Sharded sharded(filled_gpt(), options);
      int calls = 0;
      sharded.register_comm_hook([&](const Group& ranks, Tensor& whole, Tensor& rows) {
        ++calls;
        EXPECT_EQ(ranks->size(), 2);
        EXPECT_EQ(whole.numel(), sharded_strategy ? 2 * rows.numel() : rows.numel());
        rows.fill_(3);
      });
      gpt_loss(sharded, group->rank(), 0).backward();
      EXPECT_EQ(calls, 3);
      for (const auto& parameter : sharded.parameters())
        EXPECT_TRUE(torch::all(parameter.grad() == 3).item<bool>());
    });
  }
}

TEST(ShardedModule, a_trace_shows_every_unit_gathered_computed_and_reduced) {
  spawn_ranks(2, [](const Group& group) {
    FsdpOptions options = block_options(group);
    options.bucket_bytes = 0;
    Sharded sharded(filled_gpt(), options);
    EXPECT_THAT(error_of([&] { sharded.write_trace("nowhere"); }), HasSubstr("start_trace"));
    sharded.start_trace();
    gpt_loss(sharded, group->rank(), 0).backward();
    std::ostringstream json;
    engine_of(sharded).trace()->write(json);
    for (const char* name :
         {"all-gather of blocks.1", "forward blocks.1", "backward blocks.0", "unshard blocks.0",
          "gradient reduction of blocks.1", "reduce blocks.0"})
      EXPECT_THAT(json.str(), HasSubstr(name));
  });
}

TEST(ShardedModule, printing_shows_units_and_their_bytes) {
  spawn_ranks(2, [](const Group& group) {
    Gpt module = filled_gpt();
    module->emb->weight.set_requires_grad(false);
    Sharded sharded(module, block_options(group));
    std::ostringstream text;
    text << sharded;
    EXPECT_THAT(text.str(), HasSubstr("FULL_SHARD, sharded over 2 ranks, use_orig_params true"));
    // 53 x 24 twice, and a layer norm; rank 0 has 27 of 53 rows.
    const int bytes = group->rank() == 0 ? (2 * 27 * 24 + 24) * 4 : (2 * 26 * 24 + 24) * 4;
    EXPECT_THAT(text.str(), HasSubstr("(root): 4 parameters, 2592 elements (1272 frozen), " +
                                      std::to_string(bytes) + " bytes on this rank"));
    EXPECT_THAT(text.str(), HasSubstr("\n  blocks.1: 12 parameters, 7224 elements"));
  });
}

TEST(ShardedModule, at_most_two_units_are_gathered_beside_the_root) {
  for (const bool ahead : {false, true}) {
    on_worlds({2, 4}, [&](const Group& group) {
      Gpt module(4, false, 48);
      FsdpOptions options = block_options(group);
      options.bucket_bytes = 0;
      options.forward_prefetch = ahead;
      Sharded sharded(module, options);
      Buffers& buffers = engine_of(sharded).buffers();
      for (int step = 0; step < 3; ++step) gpt_loss(sharded, group->rank(), step).backward();
      std::int64_t root = 0;
      std::int64_t largest = 0;
      for (const auto& unit : engine_of(sharded).units()) {
        std::int64_t& bytes = unit->parent == nullptr ? root : largest;
        bytes = std::max(bytes, unit->gather_bytes * group->size());
      }
      // A page of rounding for each buffer.
      EXPECT_LE(buffers.peak_bytes(Use::kParameters), root + 2 * largest + 5 * 4096);
      EXPECT_GE(buffers.peak_bytes(Use::kParameters), root + largest);
      EXPECT_EQ(buffers.lent_bytes(Use::kParameters), 0);
      EXPECT_EQ(buffers.lent_bytes(Use::kGradients), 0);
    });
  }
}

TEST(ShardedModule, what_a_rank_holds_falls_with_the_ranks) {
  const auto held = [](int world_size, ShardingStrategy strategy) {
    std::int64_t bytes = 0;
    spawn_ranks(world_size, [&](const Group& group) {
      FsdpOptions options = block_options(group);
      options.sharding_strategy = strategy;
      Sharded sharded(Gpt(4, false, 48), options);
      torch::optim::AdamW optimizer(sharded.parameters());
      gpt_loss(sharded, group->rank(), 0).backward();
      optimizer.step();
      if (group->rank() != 0) return;
      for (const auto& parameter : sharded.parameters()) {
        const auto& state = static_cast<torch::optim::AdamWParamState&>(
            *optimizer.state().at(parameter.unsafeGetTensorImpl()));
        for (const Tensor& tensor :
             {Tensor(parameter), parameter.grad(), state.exp_avg(), state.exp_avg_sq()})
          bytes += static_cast<std::int64_t>(tensor.nbytes());
      }
    });
    return static_cast<double>(bytes);
  };
  const double alone = held(1, ShardingStrategy::kFullShard);
  // 53 rows of embeddings do not divide; everything else does.
  EXPECT_NEAR(held(2, ShardingStrategy::kFullShard) / alone, 0.5, 0.01);
  EXPECT_NEAR(held(4, ShardingStrategy::kFullShard) / alone, 0.25, 0.01);
  EXPECT_NEAR(held(4, ShardingStrategy::kShardGradOp) / alone, 0.25, 0.01);
  EXPECT_EQ(held(2, ShardingStrategy::kNoShard), alone);
}

}  // namespace
}  // namespace fsdp
