// SPDX-License-Identifier: Apache-2.0
// Uses of parameters inside a forward, and ways to call it: they work like in a plain module, or
// throw an error that says what to do, at one rank as at many.
#include <filesystem>
#include <latch>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/internal/engine/engine.h"
#include "tests/libfsdp/train_loop.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;  // the modules

// Two layers around a given function that uses them.
struct DoesImpl : nn::Module {
  using What = std::function<Tensor(DoesImpl&, const Tensor&)>;
  DoesImpl()
      : a(register_module("a", nn::Linear(4, 4))), b(register_module("b", nn::Linear(4, 4))) {
    fill_parameters(*this);
  }
  Tensor forward(const What& what, const Tensor& x) { return b(torch::tanh(what(*this, x))); }
  nn::Linear a, b;
};
TORCH_MODULE(Does);
using Sharded = FullyShardedDataParallel<Does>;

const DoesImpl::What kPlain = [](DoesImpl& module, const Tensor& x) { return module.a(x); };

template <typename Body>
void on_worlds(const Body& body, std::vector<int> sizes = {1, 2, 3}) {
  for (const int size : sizes) {
    SCOPED_TRACE("world size " + std::to_string(size));
    spawn_ranks(size, [&](const Group& group) {
      Does module;
      Sharded sharded(module, options_over(group, module_wrap_policy<nn::LinearImpl>()));
      body(sharded, module, group);
    });
  }
}

Tensor input() {
  return random_values({3, 4}, 11);
}

// ---- memory

TEST(ForwardCode, memory_of_a_parameter_that_is_not_there_cannot_be_asked_for) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    const auto expected = AllOf(HasSubstr("'a.weight' has no memory now"),
                                HasSubstr("fsdp::Gathered"), HasSubstr("summon_full_params"));
    const auto expect_all = [&](const Tensor& weight) {
      EXPECT_THAT(error_of([&] { (void)weight.data_ptr<float>(); }), expected);
      EXPECT_THAT(error_of([&] { (void)weight.const_data_ptr<float>(); }), expected);
      EXPECT_THAT(error_of([&] { (void)weight.data_ptr(); }), expected);
      EXPECT_THAT(error_of([&] { (void)weight.mutable_data_ptr(); }), expected);
      EXPECT_THAT(error_of([&] { (void)weight.accessor<float, 2>(); }), expected);
      EXPECT_THAT(error_of([&] { (void)weight.storage().data(); }), expected);
    };
    expect_all(module->a->weight);
    const auto cold = [&](DoesImpl& inside, const Tensor& x) {
      expect_all(inside.a->weight);
      return x;
    };
    sharded.forward(DoesImpl::What(cold), input());
    expect_all(module->a->weight);
  });
}

TEST(ForwardCode, a_forward_may_say_that_it_needs_parameters_whole) {
  if (test::on_sim()) GTEST_SKIP() << "reads parameters through data_ptr() and accessor()";
  on_worlds([](Sharded& sharded, Does&, const Group& group) {
    const Does whole;
    const auto reads = [&](DoesImpl& inside, const Tensor& x) {
      const Gathered now({inside.a->weight, inside.a->bias});
      // Operators on other units in between do not free these.
      Tensor y = inside.b(inside.b(x));
      const auto rows = inside.a->weight.accessor<float, 2>();
      const auto expected = whole->a->weight.accessor<float, 2>();
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) EXPECT_EQ(rows[i][j], expected[i][j]);
      }
      EXPECT_EQ(inside.a->bias.data_ptr<float>()[3], whole->a->bias.data_ptr<float>()[3]);
      return inside.a(y);
    };
    const auto plain = [](DoesImpl& inside, const Tensor& x) {
      return inside.a(inside.b(inside.b(x)));
    };
    sharded.forward(DoesImpl::What(reads), input()).sum().backward();
    const Tensor found = sharded.clip_grad_norm_(1e9);
    sharded.zero_grad();
    sharded.forward(DoesImpl::What(plain), input()).sum().backward();
    EXPECT_TRUE(torch::equal(found, sharded.clip_grad_norm_(1e9)));
    EXPECT_THAT(error_of([&] { const Gathered now({sharded->a->weight}); }),
                HasSubstr("outside of forward"));
    for (const auto& unit : engine_of(sharded).units()) {
      if (unit->parameters.empty()) continue;
      EXPECT_EQ(unit->state, UnitState::kSharded) << unit->name << " of rank " << group->rank();
    }
  });
}

TEST(ForwardCode, tensors_of_no_sharded_module_are_whole_anyway) {
  const Tensor tensor = torch::ones({3});
  const Gathered now({tensor, Tensor()});
  EXPECT_EQ(tensor.data_ptr<float>()[1], 1);
}

// ---- one rank as many

TEST(ForwardCode, parameters_are_not_to_be_used_outside_of_forward_at_one_rank_either) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    sharded.forward(kPlain, input()).sum().backward();
    EXPECT_THAT(error_of([&] { (void)module->a->weight.norm(); }), HasSubstr("outside of forward"));
    EXPECT_THAT(error_of([&] { module->to(torch::kDouble); }), HasSubstr("outside of forward"));
    EXPECT_THAT(error_of([&] { (void)module->a(input()); }), HasSubstr("outside of forward"));
    std::ostringstream file;
    EXPECT_THROW(torch::save(module, file), c10::Error);
    sharded.forward(kPlain, input()).sum().backward();
  });
}

// ---- summon

TEST(ForwardCode, torch_load_inside_summon_loads) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    Does other;
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : other->parameters()) parameter.add_(1);
    }
    std::stringstream file;
    torch::save(other, file);
    {
      const FullParams scope = sharded.summon_full_params();
      torch::load(module, file);
    }
    EXPECT_TRUE(torch::equal(sharded.forward(kPlain, input()), other->forward(kPlain, input())));
    sharded.forward(kPlain, input()).sum().backward();
    other->forward(kPlain, input()).sum().backward();
    const FullParams scope = sharded.summon_full_params({.writeback = false, .with_grads = true});
    for (const auto& item : other->named_parameters()) {
      EXPECT_TRUE(torch::equal(module->named_parameters()[item.key()], item.value()));
      EXPECT_LE(distance(module->named_parameters()[item.key()].grad(), item.value().grad()), 2e-6);
    }
  });
}

TEST(ForwardCode, without_writeback_nothing_stays_at_any_number_of_ranks) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    const Tensor before = sharded.forward(kPlain, input()).detach();
    {
      const FullParams scope = sharded.summon_full_params({.writeback = false});
      const torch::NoGradGuard no_grad;
      module->a->weight.zero_();
    }
    EXPECT_TRUE(torch::equal(sharded.forward(kPlain, input()), before));
  });
}

TEST(ForwardCode, what_could_not_be_written_back_is_told_by_the_next_forward) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    {
      const FullParams scope = sharded.summon_full_params();
      module->a->weight.set_data(torch::ones({2, 2}));
    }
    EXPECT_THAT(error_of([&] { sharded.forward(kPlain, input()); }),
                AllOf(HasSubstr("could not be written back"), HasSubstr("'a.weight'")));
  });
}

// ---- wrapping

TEST(ForwardCode, a_module_is_wrapped_once) {
  on_worlds([](Sharded& sharded, Does& module, const Group& group) {
    const auto expected =
        AllOf(HasSubstr("'a.weight' is sharded already"), HasSubstr("auto_wrap_policy"));
    EXPECT_THAT(error_of([&] { const Sharded twice(module, options_over(group)); }), expected);
    sharded.forward(kPlain, input()).sum().backward();
    struct OuterImpl : nn::Module {
      explicit OuterImpl(const Does& inner) { register_module("inner", inner); }
      Tensor forward(const Tensor& x) { return x; }
    };
    EXPECT_THAT(error_of([&] {
                  const FullyShardedDataParallel<OuterImpl> outer(
                      std::make_shared<OuterImpl>(module), options_over(group));
                }),
                HasSubstr("module 'inner' ran a forward before the module around it"));
    sharded.forward(kPlain, input()).sum().backward();
  });
  spawn_ranks(2, [](const Group& group) {
    Does module;
    { const Sharded gone(module, options_over(group)); }
    EXPECT_THAT(error_of([&] { const Sharded again(module, options_over(group)); }),
                HasSubstr("has been destroyed"));
  });
}

// ---- threads

TEST(ForwardCode, a_forward_uses_its_parameters_in_one_thread) {
  on_worlds([](Sharded& sharded, Does&, const Group&) {
    const Tensor before = sharded.forward(kPlain, input()).detach();
    std::string inside;
    const auto branches = [&](DoesImpl& module, const Tensor& x) {
      Tensor y;
      std::thread([&] { inside = error_of([&] { y = module.a(x); }); }).join();
      TORCH_CHECK(inside.empty(), inside);
      return y;
    };
    const std::string message =
        error_of([&] { sharded.forward(DoesImpl::What(branches), input()); });
    EXPECT_THAT(message, AllOf(HasSubstr("another thread"), HasSubstr("'a.weight'")));
    EXPECT_TRUE(torch::equal(sharded.forward(kPlain, input()), before));
  });
}

TEST(ForwardCode, two_threads_cannot_call_forward_at_once) {
  on_worlds([](Sharded& sharded, Does&, const Group&) {
    const auto meets = [&](DoesImpl& module, const Tensor& x) {
      std::string second;
      std::thread([&] { second = error_of([&] { sharded.forward(kPlain, x); }); }).join();
      EXPECT_THAT(second, AllOf(HasSubstr("two threads at once"), HasSubstr("one thread")));
      return module.a(x);
    };
    EXPECT_TRUE(torch::equal(sharded.forward(DoesImpl::What(meets), input()),
                             sharded.forward(kPlain, input())));
  });
}

// ---- branches

// An embedding in a separate unit, used or not.
struct BranchImpl : nn::Module {
  BranchImpl()
      : a(register_module("a", nn::Linear(4, 4))),
        emb(register_module("emb", nn::Embedding(97, 4))),
        b(register_module("b", nn::Linear(4, 4))) {
    fill_parameters(*this);
  }
  Tensor forward(const Tensor& x, bool with_embedding) {
    Tensor y = torch::tanh(a(x));
    if (with_embedding) y = y + emb(torch::tensor({3, 5, 7}).to(x.device()));
    return b(y).sum();
  }
  nn::Linear a;
  nn::Embedding emb;
  nn::Linear b;
};
TORCH_MODULE(Branch);

TEST(ForwardCode, branches_that_differ_between_ranks_are_an_error_on_every_rank) {
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{4} << 20}) {
    for (const int steps_before : {0, 2}) {
      spawn_ranks(3, [&](const Group& group) {
        FsdpOptions options = options_over(group, always_wrap_policy());
        options.bucket_bytes = bucket;
        FullyShardedDataParallel<Branch> sharded(Branch(), options);
        for (int step = 0; step < steps_before; ++step) sharded.forward(input(), true).backward();
        const std::string message =
            error_of([&] { sharded.forward(input(), group->rank() != 1).backward(); });
        EXPECT_THAT(message,
                    AllOf(HasSubstr("rank "), HasSubstr("the ranks run different operators")))
            << steps_before << " steps before, rank " << group->rank();
        // In one bucket it is gathered whether it is used or not, and the ranks differ in backward.
        const bool apart = bucket == 0 || steps_before == 0;
        EXPECT_THAT(message, HasSubstr(apart ? "emb" : "gradient reduction"));
      });
    }
  }
}

// Copies gather for themselves, and reduce together.
TEST(ForwardCode, branches_that_differ_between_copies_are_an_error_on_every_rank) {
  for (const auto strategy :
       {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{4} << 20}) {
      for (const int steps_before : {0, 2}) {
        spawn_ranks(4, [&](const Group& group) {
          FsdpOptions options = options_over(group, always_wrap_policy());
          options.sharding_strategy = strategy;
          options.node_size = 2;
          options.bucket_bytes = bucket;
          FullyShardedDataParallel<Branch> sharded(Branch(), options);
          for (int step = 0; step < steps_before; ++step) sharded.forward(input(), true).backward();
          const std::string message =
              error_of([&] { sharded.forward(input(), group->rank() < 2).backward(); });
          EXPECT_THAT(message,
                      AllOf(HasSubstr("rank "), HasSubstr("the ranks run different operators"),
                            HasSubstr("gradient reduction"), HasSubstr("over replicas")))
              << steps_before << " steps before, rank " << group->rank();
        });
      }
    }
  }
}

TEST(ForwardCode, branches_that_all_ranks_take_alike_are_none) {
  on_worlds([](Sharded&, Does&, const Group& group) {
    Branch whole;
    FsdpOptions options = options_over(group, always_wrap_policy());
    options.bucket_bytes = 0;
    FullyShardedDataParallel<Branch> sharded(Branch(), options);
    for (const bool with : {true, false, false, true, true, false}) {
      const Tensor loss = sharded.forward(input(), with);
      EXPECT_TRUE(torch::equal(loss, whole->forward(input(), with)));
      loss.backward();
    }
  });
}

// ---- signatures

struct SignaturesImpl : nn::Module {
  SignaturesImpl() : a(register_module("a", nn::Linear(4, 4))) {}
  void forward(Tensor& x) { x = a(x); }
  Tensor forward(std::vector<Tensor>& states) {
    states.push_back(a(states.front()));
    return states.back();
  }
  Tensor forward(Tensor&& x, const std::string& text) {
    return a(x) * static_cast<double>(text.size());
  }
  int forward(std::unique_ptr<int> number) { return *number; }
  nn::Linear a;
};

TEST(ForwardCode, forward_may_take_references_and_return_nothing) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    spawn_ranks(2, [&](const Group& group) {
      FsdpOptions options = options_over(group);
      if (dtype != torch::kFloat) options.mixed_precision.param_dtype = dtype;
      FullyShardedDataParallel<SignaturesImpl> sharded(std::make_shared<SignaturesImpl>(), options);
      static_assert(std::is_void_v<decltype(sharded.forward(std::declval<Tensor&>()))>);
      Tensor x = input();
      const Tensor before = x;
      sharded.forward(x);
      EXPECT_FALSE(x.is_same(before));
      EXPECT_EQ(x.scalar_type(), dtype);
      std::vector<Tensor> states{before};
      const Tensor last = sharded.forward(states);
      ASSERT_EQ(states.size(), 2u);
      EXPECT_TRUE(states[0].is_same(before)) << "what the module did not write stays the caller's";
      EXPECT_TRUE(states[1].is_same(last));
      EXPECT_EQ(sharded.forward(input(), std::string("abc")).sizes(), before.sizes());
      EXPECT_EQ(sharded.forward(std::make_unique<int>(7)), 7);
      x.sum().backward();
      EXPECT_TRUE(sharded.parameters().front().grad().defined());
    });
  }
}

// ---- what mixed precision leaves alone

struct NormsImpl : nn::Module {
  NormsImpl()
      : up(register_module("up", nn::Linear(6, 10))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({10})))),
        mid(register_module("mid", nn::Linear(10, 10))),
        down(register_module("down", nn::Linear(10, 3))) {
    fill_parameters(*this);
  }
  Tensor forward(const Tensor& x) { return down(mid(norm(up(x)))); }
  // Like PyTorch's hooks for modules that are left alone: up, and down again.
  Tensor by_hand(const Tensor& x) {
    const auto low = x.scalar_type();
    const auto raised = [&](auto& layer, const Tensor& y) {
      return layer(y.to(torch::kFloat)).to(low);
    };
    return down(raised(mid, raised(norm, up(x))));
  }
  nn::Linear up;
  nn::LayerNorm norm;
  nn::Linear mid, down;
};
TORCH_MODULE(Norms);

TEST(ForwardCode, mixed_precision_may_leave_any_class_alone) {
  for (const int size : {1, 2}) {
    spawn_ranks(size, [](const Group& group) {
      FsdpOptions options =
          options_over(group, custom_policy([](const nn::Module&) { return false; }));
      options.mixed_precision.param_dtype = torch::kBFloat16;
      Norms module;
      const nn::Module* const mid = module->mid.get();
      options.mixed_precision.module_classes_to_ignore = [mid](const nn::Module& part) {
        return dynamic_cast<const nn::LayerNormImpl*>(&part) != nullptr || &part == mid;
      };
      Norms whole;
      whole->up->to(torch::kBFloat16);
      whole->down->to(torch::kBFloat16);
      FullyShardedDataParallel<Norms> sharded(module, options);
      EXPECT_THAT(sharded.unit_names(), ElementsAre("", "norm", "mid"));
      const Tensor x = random_values({5, 6}, 3);
      const Tensor expected = whole->by_hand(x.to(torch::kBFloat16));
      const Tensor found = sharded.forward(x);
      EXPECT_EQ(found.scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(torch::equal(found, expected));
      found.sum().backward();
      expected.sum().backward();
      const FullParams scope = sharded.summon_full_params({.writeback = false, .with_grads = true});
      for (const char* name : {"norm.weight", "norm.bias", "mid.weight", "mid.bias"}) {
        // Kernels round as the layout of what comes from autograd has it, which differs by device.
        EXPECT_LE(distance(module->named_parameters()[name].grad(),
                           whole->named_parameters()[name].grad()),
                  test::on_sim() ? 1e-5 : 0)
            << name;
      }
    });
  }
}

// ---- small gaps

TEST(ForwardCode, modules_of_units_are_given) {
  on_worlds([](Sharded& sharded, Does& module, const Group&) {
    EXPECT_THAT(sharded.fsdp_modules(),
                ElementsAre(module.ptr(), module->a.ptr(), module->b.ptr()));
    EXPECT_THAT(sharded.fsdp_modules(/*root_only=*/true), ElementsAre(module.ptr()));
  });
}

TEST(ForwardCode, ignored_states_may_be_modules) {
  spawn_ranks(2, [](const Group& group) {
    Does module;
    // What is ignored stays where it is.
    module->a->to(test::device_of_rank(group->rank()));
    FsdpOptions options = options_over(group, module_wrap_policy<nn::LinearImpl>());
    options.ignored_states = {module->a.ptr()};
    Sharded sharded(module, options);
    EXPECT_THAT(sharded.unit_names(), ElementsAre("", "b"));
    EXPECT_EQ(module->a->weight.numel(), 16);
    EXPECT_EQ(sharded.named_parameters().back().first, "a.bias");
    sharded.forward(kPlain, input()).sum().backward();
    EXPECT_TRUE(module->a->weight.grad().defined());
    options.ignored_states = {module.ptr()};
    Does other;
    options.ignored_states = {other.ptr()};
    EXPECT_THAT(error_of([&] { const Sharded root(other, options); }),
                HasSubstr("ignored_states holds the module that is wrapped"));
  });
}

}  // namespace
}  // namespace fsdp
