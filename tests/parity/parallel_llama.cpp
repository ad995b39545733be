// SPDX-License-Identifier: Apache-2.0
// parallel_llama <from> <tokens> <first> <last> <to> <save at> <sequence> <experts>: trains the
// Llama of parallel_llama.h on a mesh of 2 x 2 ranks, which are threads: steps first to last - 1,
// from the weights of <from>, and from its optimizer's state unless first is 0.  Saves a checkpoint
// before step <save at>, and prints the losses of both places and the norm of each step.
#include "tests/parity/parallel_llama.h"

#include <array>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>

#include <torch/torch.h>

#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_shard.h"
#include "tests/support/spawn_ranks.h"

namespace fsdp {
namespace {

struct Arguments {
  std::string from, tokens;
  int first, last;
  std::string to;
  int save_at;
  bool sequence, experts;
};

struct Results {
  std::mutex mutex;
  std::vector<std::array<double, 3>> steps;  // losses of both places, norm
};

void run(const Arguments& arguments, const std::shared_ptr<ProcessGroup>& group, Results& results) {
  const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
  const DeviceMesh experts(group, {{"edp", 2}, {"ep", 2}});
  test::LlamaSizes sizes;
  sizes.vocabulary = 64;
  sizes.sequence = arguments.sequence;
  sizes.experts = arguments.experts ? 4 : 0;
  std::optional<test::Llama> model;
  {
    const MetaDevice meta;
    model.emplace(sizes, mesh["tp"], experts["ep"]);
  }
  FullyShardOptions options;
  options.mesh = mesh["dp"];
  options.param_init_fn = [](torch::nn::Module& module) {
    to_empty(module, c10::kCPU, /*recurse=*/false);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : module.parameters(false)) parameter.zero_();
  };
  const auto sharded = test::shard_llama(*model, options, experts["edp"]);
  torch::optim::AdamW optimizer(sharded->parameters(),
                                torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  TrainingState state;
  state.model = sharded.get();
  state.optimizers = {&optimizer};
  TrainingLoadOptions loading;
  loading.optimizers = arguments.first > 0;
  loading.extra = false;
  const LoadReport report = load(arguments.from, state, loading);
  TORCH_CHECK(report.same_keys() && report.cast.empty(), report.missing, report.unexpected);
  StateDict data{{"tokens", torch::empty({8, 2, 2, 9}, torch::kLong)}};
  load(arguments.tokens, data, group);
  const torch::Tensor tokens = *data.at("tokens").as_tensor();
  const int place = mesh["dp"].coordinate(0);
  for (int step = arguments.first; step < arguments.last; ++step) {
    if (step == arguments.save_at) save(arguments.to, state);
    optimizer.zero_grad();
    const torch::Tensor loss = (*model)->forward(tokens[step][place]);
    loss.backward();
    const double norm = sharded->clip_grad_norm_(0.5).item<double>();
    optimizer.step();
    const std::scoped_lock lock(results.mutex);
    auto& found = results.steps[static_cast<std::size_t>(step - arguments.first)];
    found[static_cast<std::size_t>(place)] = loss.item<double>();
    found[2] = norm;
  }
  if (arguments.save_at == arguments.last) save(arguments.to, state);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  at::set_num_threads(1);
  const fsdp::Arguments arguments{argv[1],
                                  argv[2],
                                  std::atoi(argv[3]),
                                  std::atoi(argv[4]),
                                  argv[5],
                                  std::atoi(argv[6]),
                                  argv[7] == std::string("1"),
                                  argv[8] == std::string("1")};
  fsdp::Results results;
  results.steps.resize(static_cast<std::size_t>(arguments.last - arguments.first));
  try {
    fsdp::test::spawn_ranks(4, [&](const auto& group) { run(arguments, group, results); });
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << '\n';
    return 1;
  }
  std::cout.precision(12);
  for (const auto& step : results.steps)
    std::cout << step[0] << ' ' << step[1] << ' ' << step[2] << '\n';
  return 0;
}
