// SPDX-License-Identifier: Apache-2.0
// Meshes, tensor and expert parallelism, against the same module on one rank.  Beside PyTorch's
// parallelize_module: tests/parity/parallel_llama.py.
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/device_mesh.h"
#include "libfsdp/fully_shard.h"
#include "libfsdp/gathered.h"
#include "libfsdp/internal/units/same_copies.h"
#include "libfsdp/optim_state_dict.h"
#include "libfsdp/parallel/differentiable.h"
#include "libfsdp/parallel/expert_parallel.h"
#include "libfsdp/parallel/tensor_parallel.h"
#include "libfsdp/param_groups.h"
#include "libfsdp/placement.h"
#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/train_loop.h"
#include "tests/parity/parallel_llama.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

using test::Llama;
using test::LlamaSizes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
using Mesh2 = std::vector<MeshDim>;

FullyShardOptions over(const DeviceMesh& mesh) {
  FullyShardOptions options;
  options.mesh = mesh;
  options.device_id = test::device_id_of_rank(mesh.all_ranks()->rank());
  return options;
}

DeviceMesh one_rank(const Group& group) {
  return DeviceMesh(group->subgroup({group->rank()}), {{"one", 1}});
}

Tensor on_device(const Tensor& tensor, const Group& group) {
  const auto device = test::device_id_of_rank(group->rank());
  return device ? tensor.to(*device) : tensor;
}

// Makes a model on a mesh whose values are those of every other with these sizes.
Llama filled(const LlamaSizes& sizes, const DeviceMesh& tp,
             const std::optional<DeviceMesh>& ep = {}) {
  torch::manual_seed(7);
  return Llama(sizes, tp, ep);
}

std::map<std::string, Tensor> tensors_of(const StateDict& state) {
  std::map<std::string, Tensor> result;
  for (const auto& [key, value] : state.entries()) result[text_of(key)] = value.as_tensor()->cpu();
  return result;
}

// Ranks are threads, and draw from one generator: one builds after the other.
std::mutex one_generator;
template <typename Build>
auto one_by_one(const Build& build) {
  const std::scoped_lock lock(one_generator);
  return build();
}

struct Case {
  Mesh2 mesh;
  LlamaSizes sizes;
  Mesh2 experts = {};
  std::function<void(FullyShardOptions&)> change = [](FullyShardOptions&) {};
  double tolerance = 3e-6;  // of a loss
};

// Trains on `mesh` beside the same module on one rank that sees all data.
void train_beside(const Case& test) {
  int ranks = 1;
  for (const MeshDim& dim : test.mesh) ranks *= dim.size;
  spawn_ranks(ranks, [&](const Group& group) {
    const DeviceMesh mesh(group, test.mesh);
    std::optional<DeviceMesh> experts;
    if (!test.experts.empty()) experts.emplace(group, test.experts);
    const DeviceMesh one = one_rank(group);
    auto [model, whole] = one_by_one([&] {
      return std::pair(
          filled(test.sizes, mesh["tp"], experts ? std::optional((*experts)["ep"]) : std::nullopt),
          filled(test.sizes, one, one));
    });
    FullyShardOptions options = over(mesh["dp"]);
    test.change(options);
    const auto sharded =
        shard_llama(model, options, experts ? std::optional((*experts)["edp"]) : std::nullopt);
    const auto sgd = torch::optim::SGDOptions(0.2).momentum(0.5);
    torch::optim::SGD optimizer(sharded->parameters(), sgd);
    torch::optim::SGD whole_optimizer(whole->parameters(), sgd);
    const DeviceMesh dp = mesh["dp"];
    for (int step = 0; step < 3; ++step) {
      const auto tokens_of = [&](int place) {
        return random_tokens({2, 9}, test.sizes.vocabulary,
                             static_cast<std::uint64_t>(100 * step + place));
      };
      optimizer.zero_grad();
      whole_optimizer.zero_grad();
      double expected = 0;
      for (int place = 0; place < dp.size(0); ++place) {
        const Tensor loss = whole->forward(tokens_of(place));
        (loss / dp.size(0)).backward();
        if (place == dp.coordinate(0)) expected = loss.item<double>();
      }
      const Tensor loss = model->forward(on_device(tokens_of(dp.coordinate(0)), group));
      EXPECT_NEAR(loss.item<double>(), expected, test.tolerance) << "step " << step;
      loss.backward();
      EXPECT_NEAR(sharded->clip_grad_norm_(0.5).item<double>(),
                  torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5), 4 * test.tolerance);
      optimizer.step();
      whole_optimizer.step();
    }
    const auto found = tensors_of(sharded->state_dict());
    EXPECT_EQ(found.size(), whole->named_parameters().size());
    for (const auto& item : whole->named_parameters()) {
      ASSERT_EQ(found.at(item.key()).sizes(), item.value().sizes()) << item.key();
      EXPECT_LE(distance(found.at(item.key()), item.value().detach()), 4 * test.tolerance)
          << item.key();
    }
  });
}

TEST(DeviceMesh, ranks_have_places_and_groups) {
  spawn_ranks(6, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 3}, {"tp", 2}});
    EXPECT_EQ(mesh.text(), "dp=3, tp=2");
    EXPECT_EQ(mesh.coordinate(0), group->rank() / 2);
    EXPECT_EQ(mesh["tp"].coordinate(0), group->rank() % 2);
    EXPECT_EQ(mesh["tp"].group()->global_rank(0), group->rank() / 2 * 2);
    EXPECT_EQ(mesh["dp"].group()->size(), 3);
    EXPECT_EQ(mesh["dp"].group()->global_rank(2), 4 + group->rank() % 2);
    EXPECT_EQ(mesh["dp"].copy(), std::pair(group->rank() % 2, 2));
    EXPECT_EQ(mesh.select({"tp", "dp"}).text(), "tp=2, dp=3");
    EXPECT_EQ(mesh.select({}).copy(), std::pair(group->rank(), 6));
    EXPECT_TRUE(mesh["dp"].root().is_part_of_same(mesh));
    EXPECT_EQ(mesh["dp"].all_ranks(), group);
    EXPECT_THAT(error_of([&] { mesh["pp"]; }),
                HasSubstr("there is no dimension 'pp' in (dp=3, tp=2)"));
    EXPECT_THAT(error_of([&] { mesh.group(); }), HasSubstr("expected a mesh of one dimension"));
    EXPECT_THAT(error_of([&] {
                  DeviceMesh(group, {{"dp", 2}, {"tp", 2}});
                }),
                HasSubstr("multiply to 4, and the group has 6 ranks"));
    EXPECT_THAT(error_of([&] {
                  DeviceMesh(group, {{"dp", 3}, {"dp", 2}});
                }),
                HasSubstr("'dp' is used twice"));
  });
}

// What each collective does to values and to gradients, computed from all ranks' tensors.
TEST(Differentiable, gradients_are_those_of_the_whole) {
  spawn_ranks(3, [](const Group& group) {
    const int rank = group->rank();
    const auto input_of = [](int from) {
      return random_values({2, 5}, static_cast<std::uint64_t>(from) + 1);
    };
    const auto factor_of = [](int from, const Tensor& like) {
      return random_values(like.sizes().vec(), static_cast<std::uint64_t>(from) + 11);
    };
    const auto leaf = [&] { return on_device(input_of(rank), group).requires_grad_(); };
    const auto run = [&](const Tensor& input, const Tensor& output, const Tensor& factor) {
      (output * on_device(factor, group)).sum().backward();
      return input.grad().cpu();
    };
    const auto sum_of = [&](const auto& term) {
      Tensor sum = term(0);
      for (int from = 1; from < 3; ++from) sum = sum + term(from);
      return sum;
    };
    {
      const Tensor x = leaf();
      const Tensor y = differentiable::all_reduce(x, group);
      EXPECT_LE(distance(y.detach(), sum_of(input_of)), 1e-6);
      const Tensor same = factor_of(0, y);
      EXPECT_LE(distance(run(x, y, same), same), 1e-6);
    }
    {
      const Tensor x = leaf();
      const Tensor y = differentiable::copy(x, group);
      EXPECT_EQ(distance(y.detach(), input_of(rank)), 0);
      EXPECT_LE(distance(run(x, y, factor_of(rank, y)),
                         sum_of([&](int from) { return factor_of(from, input_of(0)); })),
                1e-6);
    }
    {
      const Tensor x = leaf();
      const Tensor y = differentiable::all_gather(x, 1, group);
      EXPECT_EQ(distance(y.detach(), torch::cat({input_of(0), input_of(1), input_of(2)}, 1)), 0);
      const Tensor all = sum_of([&](int from) { return factor_of(from, torch::empty({2, 15})); });
      EXPECT_LE(distance(run(x, y, factor_of(rank, y)), all.narrow(1, 5 * rank, 5)), 1e-6);
    }
    {
      const Tensor x = leaf();
      const Tensor y = differentiable::gather(x, -1, group);
      EXPECT_LE(distance(run(x, y, factor_of(0, y)),
                         factor_of(0, torch::empty({2, 15})).narrow(1, 5 * rank, 5)),
                0);
    }
    // Five columns over three ranks: two, two and one.
    const std::int64_t first = 2 * rank;
    const std::int64_t own = rank == 2 ? 1 : 2;
    {
      const Tensor x = leaf();
      const Tensor y = differentiable::reduce_scatter(x, 1, group);
      EXPECT_LE(distance(y.detach(), sum_of(input_of).narrow(1, first, own)), 1e-6);
      const auto parts = [&](int from) {
        return factor_of(from, torch::empty({2, from == 2 ? 1 : 2}));
      };
      EXPECT_EQ(distance(run(x, y, parts(rank)), torch::cat({parts(0), parts(1), parts(2)}, 1)), 0);
    }
    {
      const Tensor x = on_device(input_of(0), group).requires_grad_();
      const Tensor y = differentiable::split(x, 1, group);
      EXPECT_EQ(distance(y.detach(), input_of(0).narrow(1, first, own)), 0);
      const Tensor whole = differentiable::gather(y, 1, group, 5);
      EXPECT_EQ(distance(whole.detach(), input_of(0)), 0);
      EXPECT_EQ(distance(run(x, whole, factor_of(0, whole)), factor_of(0, whole)), 0);
    }
    {
      // Rank r sends r rows to each rank; rank 0 sends none.
      const Tensor x = on_device(random_values({3 * rank, 2}, 5), group).requires_grad_();
      const std::vector<std::int64_t> sent(3, rank);
      const Tensor y = differentiable::all_to_all(x, sent, {0, 1, 2}, group);
      EXPECT_EQ(distance(y.detach(), torch::cat({random_values({3, 2}, 5).narrow(0, rank, 1),
                                                 random_values({6, 2}, 5).narrow(0, 2 * rank, 2)})),
                0);
      y.sum().backward();
      EXPECT_EQ(distance(x.grad(), torch::ones({3 * rank, 2})), 0);
    }
    {
      // Twice.
      const Tensor x = leaf();
      const Tensor y = differentiable::all_reduce(x * x, group).pow(2).sum();
      const Tensor g = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
      const Tensor sum = sum_of([&](int from) { return input_of(from).pow(2); });
      EXPECT_LE(distance(g.detach(), 4 * sum * input_of(rank)), 1e-5);
    }
  });
}

// Layers of random sizes, also with fewer features than ranks, against those of torch::nn: values
// from the same seed, outputs, and gradients of inputs and parameters.
class RandomLayers {
 public:
  RandomLayers(const Group& group, std::uint64_t seed)
      : group_(group),
        mesh_(group, {{"tp", group->size()}}),
        seed_(seed),
        generator_(at::detail::createCPUGenerator(seed)) {}

  void run() {
    const std::int64_t in = number(1, 9);
    const std::int64_t out = number(1, 9);
    const std::int64_t length = number(1, 3) * group_->size();
    const Tensor x = random_values({2, length, in}, seed_ + 1);
    const Tensor factor = random_values({2, length, out}, seed_ + 2);
    switch (number(0, 4)) {
      case 0:
        return column({in, out, number(0, 1) == 1}, x, factor);
      case 1:
        return row({in, out, number(0, 1) == 1}, x, factor);
      case 2:
        return embedding({in, out, number(0, 1) == 1}, length, factor);
      case 3:
        return norm({in, 1e-5, false, number(0, 1) == 1}, x);
      default:
        return cross_entropy(x.reshape({-1, in}));
    }
  }

 private:
  std::int64_t number(std::int64_t least, std::int64_t most) {
    return torch::randint(least, most + 1, {1}, generator_).item<std::int64_t>();
  }
  template <typename Build>
  auto seeded(const Build& build) {
    return one_by_one([&] {
      torch::manual_seed(seed_);
      return build();
    });
  }
  // This rank's part along a dimension.
  Tensor own(const Tensor& whole, std::int64_t dim) {
    const auto wrapped = static_cast<int>(c10::maybe_wrap_dim(dim, whole.dim()));
    const ShardLayout layout = layout_of({whole.sizes().vec(), {{mesh_, wrapped}}});
    const auto at = static_cast<std::size_t>(wrapped);
    return whole.narrow(wrapped, layout.offset[at], layout.shape[at]);
  }
  Tensor leaf(const Tensor& values) {
    return on_device(values.detach().clone(), group_).requires_grad_();
  }
  void same(const char* what, const Tensor& found, const Tensor& wanted) {
    ASSERT_TRUE(found.defined()) << what;
    ASSERT_EQ(found.sizes(), wanted.sizes()) << what;
    EXPECT_LE(distance(found.detach(), wanted.detach()), 2e-5) << what;
  }
  void backward(const Tensor& output, const Tensor& factor) {
    (output * on_device(factor.contiguous(), group_)).sum().backward();
  }

  void column(ParallelLinearOptions options, const Tensor& x, const Tensor& factor) {
    if (number(0, 1) == 1) options.sequence_dim = 1;
    options.whole_features = number(0, 1) == 1;
    auto layer = seeded([&] { return ColumnParallelLinear(options, mesh_); });
    auto plain = seeded([&] {
      return torch::nn::Linear(
          torch::nn::LinearOptions(options.in_features, options.out_features).bias(options.bias));
    });
    same("column weight", layer->weight, own(plain->weight, 0));
    move(layer);
    const Tensor input = leaf(options.sequence_dim ? own(x, 1) : x);
    const Tensor whole_input = x.clone().requires_grad_();
    const Tensor output = layer(input);
    const Tensor whole = plain(whole_input);
    same("column", output, options.whole_features ? whole : own(whole, -1));
    backward(output, options.whole_features ? factor : own(factor, -1));
    (whole * factor).sum().backward();
    same("column input", input.grad(),
         options.sequence_dim ? own(whole_input.grad(), 1) : whole_input.grad());
    same("column weight gradient", layer->weight.grad(), own(plain->weight.grad(), 0));
    if (options.bias) same("column bias", layer->bias.grad(), own(plain->bias.grad(), 0));
  }

  void row(ParallelLinearOptions options, const Tensor& x, const Tensor& factor) {
    if (number(0, 1) == 1) options.sequence_dim = 1;
    options.whole_features = number(0, 1) == 1;
    auto layer = seeded([&] { return RowParallelLinear(options, mesh_); });
    auto plain = seeded([&] {
      return torch::nn::Linear(
          torch::nn::LinearOptions(options.in_features, options.out_features).bias(options.bias));
    });
    same("row weight", layer->weight, own(plain->weight, 1));
    move(layer);
    const Tensor input = leaf(options.whole_features ? x : own(x, -1));
    const Tensor whole_input = x.clone().requires_grad_();
    const Tensor output = layer(input);
    const Tensor whole = plain(whole_input);
    same("row", output, options.sequence_dim ? own(whole, 1) : whole);
    backward(output, options.sequence_dim ? own(factor, 1) : factor);
    (whole * factor).sum().backward();
    same("row input", input.grad(),
         options.whole_features ? whole_input.grad() : own(whole_input.grad(), -1));
    same("row weight gradient", layer->weight.grad(), own(plain->weight.grad(), 1));
    if (options.bias) same("row bias", layer->bias.grad(), plain->bias.grad());
  }

  void embedding(ParallelEmbeddingOptions options, std::int64_t length, const Tensor& factor) {
    if (number(0, 1) == 1) options.sequence_dim = 1;
    auto layer = seeded([&] { return ParallelEmbedding(options, mesh_); });
    auto plain =
        seeded([&] { return torch::nn::Embedding(options.num_embeddings, options.embedding_dim); });
    const std::int64_t dim = options.cuts_vocabulary ? 0 : 1;
    same("embedding weight", layer->weight, own(plain->weight, dim));
    move(layer);
    const Tensor tokens = random_tokens({2, length}, options.num_embeddings, seed_ + 3);
    const Tensor output = layer(on_device(tokens, group_));
    const Tensor whole = plain(tokens);
    same("embedding", output, options.sequence_dim ? own(whole, 1) : whole);
    backward(output, options.sequence_dim ? own(factor, 1) : factor);
    (whole * factor).sum().backward();
    same("embedding gradient", layer->weight.grad(), own(plain->weight.grad(), dim));
  }

  void norm(SequenceParallelNormOptions options, const Tensor& x) {
    SequenceParallelNorm layer(options, mesh_);
    torch::nn::LayerNorm plain(torch::nn::LayerNormOptions({options.features}));
    move(layer);
    const Tensor factor = random_values(x.sizes().vec(), seed_ + 4);
    const Tensor input = leaf(own(x, 1));
    const Tensor whole_input = x.clone().requires_grad_();
    const Tensor output = layer(input);
    const Tensor whole = plain(whole_input);
    same("norm", output, own(whole, 1));
    backward(output, own(factor, 1));
    (whole * factor).sum().backward();
    same("norm input", input.grad(), own(whole_input.grad(), 1));
    same("norm weight", layer->weight.grad(), plain->weight.grad());
    if (options.bias) same("norm bias", layer->bias.grad(), plain->bias.grad());
  }

  void cross_entropy(const Tensor& logits) {
    Tensor targets = random_tokens({logits.size(0)}, logits.size(1), seed_ + 5);
    if (logits.size(0) > 2) targets[1] = -100;
    const Tensor input = leaf(own(logits, 1) * 5);
    const Tensor whole_input = (logits * 5).requires_grad_();
    const Tensor loss =
        cross_entropy_of_parts(input, on_device(targets, group_), logits.size(1), mesh_);
    const Tensor whole = torch::nn::functional::cross_entropy(whole_input, targets);
    same("cross entropy", loss, whole);
    loss.backward();
    whole.backward();
    same("cross entropy gradient", input.grad(), own(whole_input.grad(), 1));
  }

  template <typename Layer>
  void move(Layer& layer) {
    if (const auto device = test::device_id_of_rank(group_->rank())) layer->to(*device);
  }

  const Group group_;
  const DeviceMesh mesh_;
  const std::uint64_t seed_;
  at::Generator generator_;
};

TEST(Layers, of_any_sizes_are_those_of_torch_nn) {
  for (const int ranks : {2, 3}) {
    spawn_ranks(ranks, [](const Group& group) {
      for (std::uint64_t seed = 1; seed <= 120; ++seed) {
        SCOPED_TRACE(seed);
        RandomLayers(group, seed).run();
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

TEST(TensorParallel, whole_parameters_that_differ_are_found_before_they_are_used) {
  spawn_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    Llama model = one_by_one([&] { return filled({}, mesh["tp"]); });
    if (group->rank() % 2 == 1) {
      const torch::NoGradGuard no_grad;
      model->layers[1]->as<test::LlamaBlock>()->norm2->weight.add_(1);
    }
    const auto sharded = shard_llama(model, over(mesh["dp"]));
    const Tensor tokens = on_device(random_tokens({2, 9}, 61, 1), group);
    EXPECT_THAT(error_of([&] { model->forward(tokens); }),
                AllOf(HasSubstr("values that must be equal on ranks along 'tp'"),
                      HasSubstr("parameter 'layers.1.ffn_norm.weight'")));
    // As a load would.
    for (const auto& [name, shard] : sharded->named_parameters()) {
      const torch::NoGradGuard no_grad;
      if (name == "layers.1.ffn_norm.weight") shard.detach().fill_(1);
    }
    model->forward(tokens).backward();
  });
}

TEST(TensorParallel, trains_as_the_module_on_one_rank) {
  for (const bool sequence : {false, true}) {
    for (const Mesh2& mesh : {Mesh2{{"dp", 2}, {"tp", 2}}, Mesh2{{"dp", 1}, {"tp", 2}},
                              Mesh2{{"dp", 2}, {"tp", 1}}, Mesh2{{"tp", 4}, {"dp", 1}}}) {
      SCOPED_TRACE(::testing::Message() << "tp " << mesh.back().size << " sequence " << sequence);
      LlamaSizes sizes;
      sizes.sequence = sequence;
      sizes.bias = true;
      train_beside({mesh, sizes});
    }
  }
}

TEST(TensorParallel, dimensions_may_be_in_any_order_and_beside_copies) {
  train_beside({{{"tp", 2}, {"dp", 2}}, {}});
  train_beside({{{"copies", 2}, {"dp", 1}, {"tp", 2}}, {}});
}

TEST(TensorParallel, options_of_units_go_with_it) {
  Case test{{{"dp", 2}, {"tp", 2}}, {}, {{"edp", 2}, {"ep", 2}}};
  test.sizes.experts = 4;
  test.sizes.sequence = true;
  test.sizes.recompute = true;
  train_beside(test);
  for (const auto strategy : {ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    test.change = [strategy](FullyShardOptions& options) { options.sharding_strategy = strategy; };
    train_beside(test);
  }
  test.change = [](FullyShardOptions& options) { options.offload_policy.offload_params = true; };
  train_beside(test);
  test.tolerance = 0.03;
  test.change = [](FullyShardOptions& options) {
    options.mp_policy = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
  };
  train_beside(test);
}

TEST(ExpertParallel, trains_as_the_module_on_one_rank) {
  LlamaSizes sizes;
  sizes.experts = 4;
  train_beside({{{"dp", 4}, {"tp", 1}}, sizes, {{"edp", 2}, {"ep", 2}}});
  train_beside({{{"dp", 3}, {"tp", 1}}, sizes, {{"edp", 3}, {"ep", 1}}});
  sizes.sequence = true;
  train_beside({{{"dp", 2}, {"tp", 2}}, sizes, {{"edp", 2}, {"ep", 2}}});
  train_beside({{{"dp", 2}, {"tp", 2}}, sizes, {{"edp", 1}, {"ep", 4}}});
}

// A checkpoint of one mesh is loaded on others, bit for bit.
TEST(TensorParallel, checkpoints_are_of_the_whole) {
  const test::TempDir folder;
  const std::string path = folder.path() / "step";
  LlamaSizes sizes;
  sizes.experts = 4;
  sizes.sequence = true;
  const auto with = [&](const Mesh2& dims, const Mesh2& expert_dims, const auto& body) {
    int ranks = 1;
    for (const MeshDim& dim : dims) ranks *= dim.size;
    spawn_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group, dims);
      const DeviceMesh experts(group, expert_dims);
      Llama model = one_by_one([&] { return filled(sizes, mesh["tp"], experts["ep"]); });
      const auto sharded = shard_llama(model, over(mesh["dp"]), experts["edp"]);
      torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(0.01));
      TrainingState state;
      state.model = sharded.get();
      state.optimizers = {&optimizer};
      body(model, *sharded, optimizer, state, group);
    });
  };
  const auto step = [&](Llama& model, torch::optim::Optimizer& optimizer, int seed,
                        const Group& group) {
    optimizer.zero_grad();
    const Tensor loss = model->forward(on_device(
        random_tokens({2, 9}, sizes.vocabulary, static_cast<std::uint64_t>(seed)), group));
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  std::map<std::string, Tensor> saved;
  StateDict saved_optimizer;
  double next_loss = 0;
  with({{"dp", 2}, {"tp", 2}}, {{"edp", 2}, {"ep", 2}},
       [&](Llama& model, ShardedModule& sharded, auto& optimizer, TrainingState& state,
           const Group& group) {
         for (int i = 0; i < 2; ++i) step(model, optimizer, i, group);
         save(path, state);
         const auto whole = tensors_of(sharded.state_dict());
         const StateDict states = full_optim_state_dict(sharded, optimizer);
         const double loss = step(model, optimizer, 2, group);
         if (group->rank() != 0) return;
         saved = whole;
         saved_optimizer = states;
         next_loss = loss;
       });
  EXPECT_EQ(saved.at("layers.0.moe.experts.w2").sizes(), (std::vector<std::int64_t>{4, 16, 24}));
  EXPECT_EQ(saved.at("output.weight").sizes(), (std::vector<std::int64_t>{61, 16}));
  const std::vector<std::pair<Mesh2, Mesh2>> others = {
      {{{"dp", 2}, {"tp", 2}}, {{"edp", 2}, {"ep", 2}}},
      {{{"dp", 1}, {"tp", 1}}, {{"edp", 1}, {"ep", 1}}},
      {{{"dp", 3}, {"tp", 1}}, {{"edp", 3}, {"ep", 1}}},
      {{{"dp", 1}, {"tp", 4}}, {{"edp", 2}, {"ep", 2}}},
      {{{"tp", 2}, {"dp", 2}}, {{"ep", 4}, {"edp", 1}}},
  };
  for (const auto& [mesh, experts] : others) {
    with(mesh, experts,
         [&](Llama& model, ShardedModule& sharded, auto& optimizer, TrainingState& state,
             const Group& group) {
           {
             const torch::NoGradGuard no_grad;
             for (const Tensor& shard : sharded.parameters()) shard.detach().zero_();
           }
           EXPECT_TRUE(load(path, state).same_keys());
           for (const auto& [name, tensor] : tensors_of(sharded.state_dict()))
             EXPECT_TRUE(torch::equal(tensor, saved.at(name))) << name;
           const StateDict states = full_optim_state_dict(sharded, optimizer, false);
           for (const auto& [name, values] : saved_optimizer.at("state").dict().entries()) {
             for (const char* slot : {"exp_avg", "exp_avg_sq"}) {
               EXPECT_TRUE(torch::equal(
                   states.at("state").dict().at(name).dict().at(slot).as_tensor()->cpu(),
                   values.dict().at(slot).as_tensor()->cpu()))
                   << text_of(name) << ' ' << slot;
             }
           }
           EXPECT_NEAR(step(model, optimizer, 2, group), next_loss, 3e-6);
         });
  }
}

TEST(TensorParallel, whole_state_is_loaded_and_scattered) {
  spawn_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    Llama model = one_by_one([&] { return filled({}, mesh["tp"]); });
    const auto sharded = shard_llama(model, over(mesh["dp"]));
    torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(0.01));
    model->forward(on_device(random_tokens({2, 9}, 61, 1), group)).backward();
    optimizer.step();
    const StateDict whole = sharded->state_dict();
    const StateDict states = full_optim_state_dict(*sharded, optimizer);
    EXPECT_EQ(states.size() == 0, group->rank() != 0);
    const Tensor before = full_tensor(sharded->named_parameters()[0].second).cpu();
    EXPECT_TRUE(torch::equal(before, whole.at("tok_embeddings.weight").as_tensor()->cpu()));
    EXPECT_THAT(original_shape(sharded->named_parameters()[0].second), ElementsAre(61, 16));
    const auto rows = [&] {
      std::vector<Tensor> result;
      for (const Tensor& shard : sharded->parameters()) result.push_back(shard.detach().clone());
      return result;
    };
    const auto kept = rows();
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& shard : sharded->parameters()) shard.detach().zero_();
    }
    sharded->load_state_dict(whole);
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(torch::equal(rows()[i], kept[i]));
    torch::optim::AdamW other(sharded->parameters(), torch::optim::AdamWOptions(0.01));
    load_optimizer_state_dict(other, scatter_full_optim_state_dict(states, *sharded, other));
    const StateDict again = full_optim_state_dict(*sharded, other);
    if (group->rank() != 0) return;
    for (const auto& [name, values] : states.at("state").dict().entries())
      EXPECT_TRUE(torch::equal(*again.at("state").dict().at(name).dict().at("exp_avg").as_tensor(),
                               *values.dict().at("exp_avg").as_tensor()))
          << text_of(name);
  });
}

TEST(TensorParallel, wrong_meshes_are_named) {
  spawn_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 1}, {"tp", 2}});
    const DeviceMesh other(group, {{"dp", 2}});
    const auto error_with = [&](const FullyShardOptions& options) {
      return error_of([&] {
        ColumnParallelLinear layer(ParallelLinearOptions{4, 4}, mesh["tp"]);
        fully_shard(layer, options);
      });
    };
    FullyShardOptions options;
    options.process_group = mesh["dp"].group();
    EXPECT_THAT(error_with(options),
                AllOf(HasSubstr("parameter 'weight' is a part along 'tp' of a mesh"),
                      HasSubstr("instead of groups")));
    EXPECT_THAT(error_with(over(other["dp"])),
                AllOf(HasSubstr("of another mesh, (dp=2)"), HasSubstr("fully_shard() of its own")));
    EXPECT_THAT(error_with(over(mesh["tp"])), HasSubstr("over which its module is sharded, too"));
    EXPECT_THAT(error_with(over(mesh.select({"dp", "tp"}))), HasSubstr("sharded, too"));
    FullyShardOptions both = over(mesh["dp"]);
    both.process_group = group;
    EXPECT_THAT(error_with(both), HasSubstr("both given"));
    EXPECT_THAT(error_of([&] {
                  ParallelExperts(ParallelExpertsOptions{3, 4, 4}, mesh["tp"]);
                }),
                HasSubstr("3 experts cannot be divided evenly over the 2 ranks of 'tp'"));
    ParallelEmbedding table(ParallelEmbeddingOptions{5, 4}, mesh["tp"]);
    EXPECT_THAT(error_of([&] { table(torch::tensor({5})); }),
                HasSubstr("expected numbers from 0 to 4, found 5 to 5"));
  });
}

}  // namespace
}  // namespace fsdp
