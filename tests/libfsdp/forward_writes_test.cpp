// SPDX-License-Identifier: Apache-2.0
// Forwards that write their own parameters: writes that persist without sharding reach the shards.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/internal/engine/engine.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace test;  // the modules

using Writer = std::function<void(nn::LinearImpl&)>;

// Masks every other row, like masked convolutions.
Tensor mask_of(const Tensor& weight) {
  Tensor mask = torch::ones(weight.sizes(), weight.options());
  mask.index_put_({torch::indexing::Slice(1, torch::indexing::None, 2)}, 0.0);
  return mask;
}

// Three layers, each written just before it is used, and a parameter of the root.
struct WritesImpl : nn::Module {
  explicit WritesImpl(Writer w, bool recompute = false)
      : writer(std::move(w)),
        recomputes(recompute),
        a(register_module("a", nn::Linear(5, 7))),
        b(register_module("b", nn::Linear(7, 4))),
        c(register_module("c", nn::Linear(4, 3))),
        scale(register_parameter("scale", torch::ones({5}))) {
    fill_parameters(*this);
  }
  Tensor run(nn::Linear& layer, const Tensor& x) {
    auto written = [this, layer](const Tensor& input) mutable {
      writer(*layer);
      return torch::tanh(layer(input));
    };
    return recomputes ? checkpoint(written, x) : written(x);
  }
  Tensor forward(const Tensor& x) {
    scale.data().clamp_(0.1, 0.2);
    return run(c, run(b, run(a, x * scale)));
  }

  Writer writer;
  bool recomputes;
  nn::Linear a, b, c;
  Tensor scale;
};
TORCH_MODULE(Writes);
using Sharded = FullyShardedDataParallel<Writes>;

void by_data(nn::LinearImpl& layer) {
  layer.weight.data().mul_(mask_of(layer.weight));
}
void without_gradients(nn::LinearImpl& layer) {
  const torch::NoGradGuard no_grad;
  layer.weight.mul_(mask_of(layer.weight));
}
void by_a_part_of_a_view(nn::LinearImpl& layer) {
  const torch::NoGradGuard no_grad;
  layer.weight.t().index_put_(
      {torch::indexing::Slice(), torch::indexing::Slice(1, torch::indexing::None, 2)}, 0.0);
}
void as_an_output(nn::LinearImpl& layer) {
  const torch::NoGradGuard no_grad;
  Tensor weight = layer.weight;
  torch::mul_out(weight, layer.weight, mask_of(layer.weight));
}
void several_at_once(nn::LinearImpl& layer) {
  const torch::NoGradGuard no_grad;
  const std::vector<Tensor> both{layer.weight, layer.bias};
  torch::_foreach_mul_(both, {mask_of(layer.weight), torch::ones_like(layer.bias)});
}
// Limits the norm, as EEGNet's convolutions do.
void by_another_tensor(nn::LinearImpl& layer) {
  layer.weight.set_data(torch::renorm(layer.weight.data(), 2, 0, 0.5));
}
const std::vector<std::pair<const char*, Writer>> kWriters{
    {"by data()", by_data},
    {"without gradients", without_gradients},
    {"by a part of a view", by_a_part_of_a_view},
    {"as an output", as_an_output},
    {"several at once", several_at_once},
    {"by another tensor", by_another_tensor}};

ShardedCase<Writes> training(const Writer& writer, bool recomputes = false) {
  ShardedCase<Writes> test;
  test.build = [=] { return Writes(writer, recomputes); };
  test.options.auto_wrap_policy = module_wrap_policy<nn::LinearImpl>();
  test.options.use_orig_params = true;
  test.loss = [](const auto& forward, int rank, int step) {
    const auto seed = static_cast<std::uint64_t>(10 * step + rank);
    return forward(random_values({3, 5}, seed)).square().sum();
  };
  return test;
}

const std::vector<int> kWorlds{1, 2, 3};

// ---- right as without sharding

TEST(ForwardWrites, train_as_without_sharding_however_they_are_written) {
  for (const auto& [name, writer] : kWriters) {
    SCOPED_TRACE(name);
    expect_same_training(training(writer), kWorlds);
  }
}

TEST(ForwardWrites, train_under_every_strategy) {
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
        ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    for (const auto& writer : {Writer(without_gradients), Writer(by_another_tensor)}) {
      SCOPED_TRACE(static_cast<int>(strategy));
      auto test = training(writer);
      test.options.sharding_strategy = strategy;
      test.options.use_orig_params = strategy != ShardingStrategy::kShardGradOp;
      expect_same_training(test, {1, 2, 3, 4});
    }
  }
}

TEST(ForwardWrites, train_with_every_way_to_gather_ahead) {
  for (const auto prefetch :
       {BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost, BackwardPrefetch::kNone}) {
    for (const std::int64_t bucket : {0, 1 << 20}) {
      SCOPED_TRACE(bucket);
      auto test = training(by_data);
      test.options.forward_prefetch = true;
      test.options.backward_prefetch = prefetch;
      test.options.bucket_bytes = bucket;
      expect_same_training(test, kWorlds);
    }
  }
}

TEST(ForwardWrites, are_written_again_where_a_unit_is_recomputed) {
  for (const auto& [name, writer] : kWriters) {
    SCOPED_TRACE(name);
    expect_same_training(training(writer, /*recomputes=*/true), kWorlds);
  }
}

TEST(ForwardWrites, train_with_accumulated_gradients) {
  for (const bool no_sync : {false, true}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      for (const auto& writer : {Writer(by_data), Writer(by_another_tensor)}) {
        auto test = training(writer);
        test.micro_steps = 3;
        test.no_sync = no_sync;
        test.options.sharding_strategy = strategy;
        expect_same_training(test, kWorlds);
      }
    }
  }
}

// Values that every forward changes again.
TEST(ForwardWrites, stay_after_forwards_with_and_without_gradients) {
  const Writer halves = [](nn::LinearImpl& layer) { layer.weight.data().mul_(0.5); };
  const Writer replaces = [](nn::LinearImpl& layer) {
    layer.weight.set_data(layer.weight.data() * 0.5);
  };
  for (const auto& writer : {halves, replaces}) {
    for (const int world : kWorlds) {
      spawn_ranks(world, [&](const Group& group) {
        Writes plain(writer);
        Writes module(writer);
        Sharded sharded(module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
        const auto expect_same = [&] {
          const FullParams scope = sharded.summon_full_params();
          for (const auto& item : plain->named_parameters())
            EXPECT_TRUE(torch::equal(module->named_parameters()[item.key()], item.value()))
                << item.key();
        };
        const Tensor x = random_values({2, 5}, 3);
        {
          const torch::NoGradGuard no_grad;
          EXPECT_TRUE(torch::equal(sharded.forward(x), plain->forward(x)));
        }
        expect_same();
        EXPECT_TRUE(torch::equal(sharded.forward(x), plain->forward(x)));
        expect_same();
        {
          const c10::InferenceMode inference;
          EXPECT_TRUE(torch::equal(sharded.forward(x), plain->forward(x)));
        }
        expect_same();
        // Two forwards, one backward.
        const auto both = [&](auto& of) { return (of.forward(x) + of.forward(2 * x)).sum(); };
        both(sharded).backward();
        both(*plain).backward();
        const FullParams scope =
            sharded.summon_full_params({.writeback = false, .with_grads = true});
        for (const auto& item : plain->named_parameters())
          EXPECT_LE(distance(module->named_parameters()[item.key()].grad(), item.value().grad()),
                    1e-6)
              << item.key();
      });
    }
  }
}

TEST(ForwardWrites, of_several_units_by_one_operator) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [](const Group& group) {
      Writes module(by_data);
      const Tensor a = module->a->weight.detach().clone();
      const Tensor c = module->c->weight.detach().clone();
      Sharded sharded(module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
      sharded.call(
          [](WritesImpl& inside, const Tensor&) {
            torch::_foreach_mul_({inside.a->weight.data(), inside.c->weight.data()}, 0.5);
          },
          torch::ones({1}));
      const FullParams scope = sharded.summon_full_params();
      EXPECT_TRUE(torch::equal(module->a->weight, a * 0.5));
      EXPECT_TRUE(torch::equal(module->c->weight, c * 0.5));
    });
  }
}

TEST(ForwardWrites, of_embeddings_that_renormalize_what_all_ranks_look_up) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [](const Group& group) {
      const auto build = [] {
        nn::Embedding module(nn::EmbeddingOptions(10, 3).max_norm(0.1));
        fill_parameters(*module);
        return module;
      };
      nn::Embedding plain = build();
      nn::Embedding module = build();
      FullyShardedDataParallel<nn::Embedding> sharded(module, options_over(group));
      const Tensor tokens = random_tokens({4}, 10, 1);
      for (int i = 0; i < 2; ++i)
        EXPECT_TRUE(torch::equal(sharded.forward(tokens), plain->forward(tokens)));
      const FullParams scope = sharded.summon_full_params();
      EXPECT_TRUE(torch::equal(module->weight, plain->weight));
    });
  }
}

// ---- mixed precision

FsdpOptions in_bfloat16(const Group& group) {
  FsdpOptions options = options_over(group, module_wrap_policy<nn::LinearImpl>());
  options.mixed_precision.param_dtype = torch::kBFloat16;
  return options;
}

struct MaskedImpl : nn::Module {
  explicit MaskedImpl(Writer w) : writer(std::move(w)), a(register_module("a", nn::Linear(5, 7))) {
    fill_parameters(*this);
  }
  Tensor forward(const Tensor& x) {
    writer(*a);
    return a(x);
  }
  Writer writer;
  nn::Linear a;
};
TORCH_MODULE(Masked);

TEST(ForwardWrites, of_zeros_reach_shards_of_higher_precision_which_keep_the_rest) {
  for (const auto& writer : {Writer(without_gradients), Writer([](nn::LinearImpl& layer) {
                               layer.weight.set_data(layer.weight.data() * mask_of(layer.weight));
                             })}) {
    for (const int world : kWorlds) {
      spawn_ranks(world, [&](const Group& group) {
        Masked module(writer);
        const Tensor before = module->a->weight.detach().clone();
        FullyShardedDataParallel<Masked> sharded(module, in_bfloat16(group));
        const Tensor found = sharded.forward(random_values({2, 5}, 3));
        EXPECT_EQ(found.scalar_type(), torch::kBFloat16);
        const FullParams scope = sharded.summon_full_params();
        EXPECT_TRUE(torch::equal(module->a->weight, before * mask_of(before)));
      });
    }
  }
}

TEST(ForwardWrites, that_would_round_a_shard_name_it) {
  const Writer replaces = [](nn::LinearImpl& layer) {
    layer.weight.set_data(layer.weight.data() * 0.75);
  };
  const Writer scales = [](nn::LinearImpl& layer) { layer.weight.data().mul_(0.75); };
  for (const auto& [writer, name] :
       {std::pair(scales, "'aten::mul_'"), std::pair(replaces, "'set_data'")}) {
    for (const int world : {1, 2}) {
      spawn_ranks(world, [&, &writer = writer, &name = name](const Group& group) {
        Masked module(writer);
        FullyShardedDataParallel<Masked> sharded(module, in_bfloat16(group));
        EXPECT_THAT(error_of([&] {
                      sharded.forward(random_values({2, 5}, 3));
                    }),
                    AllOf(HasSubstr(name),
                          HasSubstr("writes values other than zero to parameter 'a.weight'"),
                          HasSubstr("module_classes_to_ignore")));
      });
    }
  }
}

TEST(ForwardWrites, of_modules_that_mixed_precision_leaves_alone_are_whole) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [](const Group& group) {
      // With an argument in the low precision, like activations.
      const Writer writer = [](nn::LinearImpl& layer) {
        const torch::NoGradGuard no_grad;
        const Tensor& same = layer.weight.mul_(
            torch::full({5}, 0.75, layer.weight.options().dtype(torch::kBFloat16)));
        EXPECT_TRUE(same.is_same(layer.weight));
      };
      Masked module(writer);
      const Tensor before = module->a->weight.detach().clone();
      FsdpOptions options = in_bfloat16(group);
      options.mixed_precision.module_classes_to_ignore = [](const nn::Module& part) {
        return part.as<nn::Linear>() != nullptr;
      };
      FullyShardedDataParallel<Masked> sharded(module, options);
      sharded.forward(random_values({2, 5}, 3)).sum().backward();
      const FullParams scope = sharded.summon_full_params();
      EXPECT_TRUE(torch::equal(module->a->weight, before * 0.75));
    });
  }
}

// ---- errors

TEST(ForwardWrites, that_differ_between_ranks_are_named_at_the_next_gather) {
  let_devices_keep_up();
  for (const int world : {2, 3}) {
    spawn_ranks(world, [&](const Group& group) {
      const bool last = group->rank() == world - 1;
      const Writer writer = [&](nn::LinearImpl& layer) {
        layer.weight.data().mul_(last ? 0.5 : 0.25);
      };
      Writes module(writer);
      Sharded sharded(module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
      const Tensor loss = sharded.forward(random_values({2, 5}, 3)).sum();
      EXPECT_THAT(error_of([&] { loss.backward(); }),
                  AllOf(HasSubstr("forward of rank " + std::to_string(last ? 0 : world - 1)),
                        HasSubstr("wrote other values"), HasSubstr(".weight' last"),
                        HasSubstr("ignored_states")));
    });
  }
}

TEST(ForwardWrites, of_embeddings_that_renormalize_what_this_rank_looks_up_are_named) {
  let_devices_keep_up();
  spawn_ranks(2, [](const Group& group) {
    nn::Embedding module(nn::EmbeddingOptions(10, 3).max_norm(0.1));
    FullyShardedDataParallel<nn::Embedding> sharded(module, options_over(group));
    const auto seed = static_cast<std::uint64_t>(group->rank());
    sharded.forward(random_tokens({4}, 10, seed)).sum().backward();
    EXPECT_THAT(error_of([&] { sharded.forward(random_tokens({4}, 10, seed)); }),
                AllOf(HasSubstr("wrote other values"), HasSubstr("'weight' last")));
  });
}

TEST(ForwardWrites, of_shape_and_storage_are_named) {
  const std::vector<std::pair<const char*, Writer>> writers{
      {"aten::t_",
       [](nn::LinearImpl& layer) {
         const torch::NoGradGuard no_grad;
         layer.weight.t_();
       }},
      {"aten::set_",
       [](nn::LinearImpl& layer) {
         const torch::NoGradGuard no_grad;
         layer.weight.set_(torch::ones({7, 5}));
       }},
      {"aten::detach_", [](nn::LinearImpl& layer) { layer.weight.detach_(); }}};
  for (const auto& [name, writer] : writers) {
    for (const int world : {1, 2}) {
      spawn_ranks(world, [&, &writer = writer, &name = name](const Group& group) {
        Masked module(writer);
        FullyShardedDataParallel<Masked> sharded(module, options_over(group));
        const std::string what = "'" + std::string(name) + "' changes parameter 'a.weight' itself";
        EXPECT_THAT(error_of([&] { sharded.forward(random_values({2, 5}, 3)); }), HasSubstr(what));
        // Views have their own shapes.
        module->writer = [](nn::LinearImpl& layer) { layer.weight.data().t_().squeeze_(); };
        sharded.forward(random_values({2, 5}, 3)).sum().backward();
      });
    }
  }
}

TEST(ForwardWrites, of_tensors_that_cannot_be_the_parameter_are_named) {
  const std::vector<Writer> writers{[](nn::LinearImpl& layer) {
                                      layer.weight.set_data(torch::ones({9, 5}));
                                    },
                                    [](nn::LinearImpl& layer) {
                                      layer.weight.set_data(torch::ones({7, 5}, torch::kDouble));
                                    },
                                    [](nn::LinearImpl& layer) {
                                      layer.weight.set_data(layer.bias.data().expand({5, 7}).t());
                                    }};
  for (const auto& writer : writers) {
    for (const int world : {1, 2}) {
      spawn_ranks(world, [&](const Group& group) {
        Masked module(writer);
        FullyShardedDataParallel<Masked> sharded(module, options_over(group));
        const Tensor x = random_values({2, 5}, 3);
        const auto forward = [&] {
          sharded.call([](MaskedImpl& inside, const Tensor&) { return inside.writer(*inside.a); },
                       x);
        };
        EXPECT_THAT(error_of(forward), AllOf(HasSubstr("'a.weight'"), HasSubstr("set_data")));
      });
    }
  }
}

TEST(ForwardWrites, of_a_forward_that_failed_do_not_keep_the_next_from_training) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [](const Group& group) {
      // Rank 0 fails before it writes, others after.
      bool fails = true;
      const Writer writer = [&](nn::LinearImpl& layer) {
        const bool early = group->rank() == 0;
        layer.weight.sum();  // gathered on every rank
        if (fails && early) throw std::runtime_error("out of data");
        without_gradients(layer);
        if (fails) throw std::runtime_error("out of data");
      };
      Masked module(writer);
      const Tensor before = module->a->weight.detach().clone();
      FullyShardedDataParallel<Masked> sharded(module, options_over(group));
      EXPECT_THROW(sharded.forward(random_values({2, 5}, 3)), std::exception);
      fails = false;
      for (int i = 0; i < 2; ++i) sharded.forward(random_values({2, 5}, 3)).sum().backward();
      const FullParams scope = sharded.summon_full_params();
      EXPECT_TRUE(torch::equal(module->a->weight, before * mask_of(before)));
    });
  }
}

TEST(ForwardWrites, are_lost_to_no_backward_after_a_step) {
  for (const auto& writer : {Writer(by_data), Writer(by_another_tensor)}) {
    for (const bool forward_again : {false, true}) {
      for (const int world : {1, 2}) {
        spawn_ranks(world, [&](const Group& group) {
          Writes module(writer);
          Sharded sharded(module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
          torch::optim::SGD optimizer(sharded.parameters(), 0.1);
          sharded.forward(random_values({2, 5}, 3)).sum().backward();
          const Tensor loss = sharded.forward(random_values({2, 5}, 3)).sum();
          optimizer.step();
          if (forward_again) sharded.forward(random_values({2, 5}, 3));
          EXPECT_THROW(loss.backward(), c10::Error);
        });
      }
    }
  }
}

// Operators on a tensor in a parameter's place are not observed; they save the parameter.
TEST(ForwardWrites, by_another_tensor_that_nothing_else_is_used_with_are_none_either) {
  for (const bool forward_again : {false, true}) {
    for (const int world : {1, 2}) {
      spawn_ranks(world, [&](const Group& group) {
        Masked module(by_another_tensor);
        FullyShardedDataParallel<Masked> sharded(
            module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
        torch::optim::SGD optimizer(sharded.parameters(), 0.1);
        const auto loss = [&] {
          return sharded
              .call(
                  [](MaskedImpl& inside, const Tensor& x) {
                    inside.writer(*inside.a);
                    return torch::linear(x, inside.a->weight);
                  },
                  random_values({2, 5}, 3).set_requires_grad(true))
              .sum();
        };
        loss().backward();
        const Tensor late = loss();
        optimizer.step();
        if (forward_again) loss();
        EXPECT_THROW(late.backward(), c10::Error);
        loss().backward();
      });
    }
  }
}

}  // namespace
}  // namespace fsdp
