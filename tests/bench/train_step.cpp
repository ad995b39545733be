// SPDX-License-Identifier: Apache-2.0
// One rank that trains the GPT of gpt.h and times its steps; train.py starts the ranks like
// torchrun.
// Run: bench_train_step NAME=VALUE...        see kDefaults
// Prints one line of JSON for each rank; milliseconds are of a whole step, with the optimizer.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "tests/bench/gpt.h"

namespace fsdp::bench {
using namespace internal;
namespace {

using Clock = std::chrono::steady_clock;
using Settings = std::map<std::string, std::string>;

const Settings kDefaults = {
    {"width", "64"},
    {"layers", "4"},
    {"vocabulary", "256"},
    {"length", "32"},
    {"batch", "2"},
    {"steps", "30"},
    {"warmup", "5"},
    {"fused", "1"},        // fsdp::optim::AdamW; else torch::optim::AdamW
    {"sharded", "1"},      // 0: every rank trains its own model
    {"strategy", "full"},  // or grad_op
    {"orig", "0"},         // use_orig_params
    {"forward_prefetch", "0"},
    {"backward_prefetch", "pre"},
    {"bucket_mib", "4"},
    {"wrap_ends", "0"},  // embeddings and head as separate units
    {"bf16", "0"},       // 1: parameters and activations in bfloat16
    {"device", "cpu"},   // or cuda, if the program links fsdp::cuda
    {"backend", ""},     // empty: that of the device
};

Settings settings_of(int argc, char** argv) {
  Settings settings = kDefaults;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    TORCH_CHECK(equals != std::string::npos && settings.contains(name),
                "expected NAME=VALUE of a known name, but got '", argument, "'");
    settings[name] = argument.substr(equals + 1);
  }
  return settings;
}

FsdpOptions options_of(const Settings& settings, const GPT& model,
                       const std::shared_ptr<ProcessGroup>& group) {
  FsdpOptions options;
  options.process_group = group;
  options.auto_wrap_policy =
      custom_policy([ends = settings.at("wrap_ends") == "1",
                     head = model->head.get()](const torch::nn::Module& module) {
        return module.as<test::BlockImpl>() != nullptr ||
               (ends && (module.as<torch::nn::EmbeddingImpl>() != nullptr || &module == head));
      });
  options.sharding_strategy = settings.at("strategy") == "grad_op" ? ShardingStrategy::kShardGradOp
                                                                   : ShardingStrategy::kFullShard;
  options.use_orig_params = settings.at("orig") == "1";
  options.forward_prefetch = settings.at("forward_prefetch") == "1";
  const std::string& backward = settings.at("backward_prefetch");
  options.backward_prefetch = backward == "pre"    ? BackwardPrefetch::kBackwardPre
                              : backward == "post" ? BackwardPrefetch::kBackwardPost
                                                   : BackwardPrefetch::kNone;
  if (settings.at("bf16") == "1") {
    options.mixed_precision.param_dtype = at::kBFloat16;
    options.mixed_precision.reduce_dtype = at::kFloat;
  }
  options.bucket_bytes =
      static_cast<std::int64_t>(std::stod(settings.at("bucket_mib")) * (1 << 20));
  return options;
}

double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Waits until the device has done what was issued.
void synchronize(const c10::Device& device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

// Returns the most memory of the device that tensors had at a time.
double peak_device_mib(const c10::Device& device) {
  if (device.is_cpu()) return 0;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(stats.allocated_bytes.at(all).peak) / (1 << 20);
}

struct Timing {
  std::vector<double> step_ms;
  double cpu_ms_per_step = 0;
  std::vector<float> losses;
};

template <typename Forward>
Timing train(const Settings& settings, const Sizes& sizes,
             const std::shared_ptr<ProcessGroup>& group, torch::optim::Optimizer& optimizer,
             const Forward& forward) {
  const int warmup = std::stoi(settings.at("warmup"));
  const int steps = std::stoi(settings.at("steps"));
  Timing timing;
  double cpu = 0;
  for (int step = 0; step < warmup + steps; ++step) {
    const at::Tensor batch = tokens(sizes, step, group->rank()).to(group->device());
    synchronize(group->device());
    if (step == warmup) {
      barrier(group, "before the first timed step");
      cpu = cpu_ms();
    }
    const auto begin = Clock::now();
    const at::Tensor logits = forward(batch.narrow(1, 0, sizes.length));
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1).to(at::kFloat), batch.narrow(1, 1, sizes.length).flatten());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    synchronize(group->device());
    const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
    if (step >= warmup) timing.step_ms.push_back(taken.count());
    timing.losses.push_back(loss.item<float>());
  }
  timing.cpu_ms_per_step = (cpu_ms() - cpu) / steps;
  // Rank 0 serves the store, so it must not leave first.
  barrier(group, "after the last step");
  return timing;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Settings& settings,
                                                      std::vector<at::Tensor> parameters) {
  if (settings.at("fused") == "1")
    return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-3));
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(1e-3));
}

void print(const Timing& timing, const ProcessGroup& group, const std::string& rest) {
  std::vector<double> sorted = timing.step_ms;
  std::sort(sorted.begin(), sorted.end());
  std::ostringstream line;
  line.precision(9);
  line << "{\"rank\": " << group.rank() << ", \"median_ms\": " << sorted[sorted.size() / 2]
       << ", \"min_ms\": " << sorted.front() << ", \"cpu_ms\": " << timing.cpu_ms_per_step
       << ", \"peak_mib\": " << peak_mib()
       << ", \"device_mib\": " << peak_device_mib(group.device())
       << ", \"first_loss\": " << timing.losses.front()
       << ", \"last_loss\": " << timing.losses.back() << rest << "}\n";
  std::cout << line.str() << std::flush;
}

void run(const Settings& settings) {
  const auto number = [&](const char* name) { return std::stoll(settings.at(name)); };
  const Sizes sizes{number("width"), number("layers"), number("vocabulary"), number("length"),
                    number("batch")};
  torch::set_num_threads(1);
  ProcessGroupOptions ranks;
  ranks.device_id = c10::Device(settings.at("device"));
  ranks.backend = settings.at("backend");
  const auto group = init_process_group(ranks);
  GPT model(sizes);
  if (settings.at("sharded") == "0") {
    model->to(group->device());
    const auto optimizer = optimizer_of(settings, model->parameters());
    print(train(settings, sizes, group, *optimizer, [&](const at::Tensor& x) { return model(x); }),
          *group, "");
    return;
  }
  FullyShardedDataParallel<GPT> sharded(model, options_of(settings, model, group));
  const auto optimizer = optimizer_of(settings, sharded.parameters());
  const Timing timing = train(settings, sizes, group, *optimizer,
                              [&](const at::Tensor& x) { return sharded.forward(x); });
  const EngineStats& stats = sharded.engine().stats();
  const auto all_steps = static_cast<double>(timing.losses.size());
  std::ostringstream rest;
  rest << ", \"gathers\": " << static_cast<double>(stats.gathers) / all_steps
       << ", \"reductions\": " << static_cast<double>(stats.reductions) / all_steps;
  print(timing, *group, rest.str());
}

}  // namespace
}  // namespace fsdp::bench

int main(int argc, char** argv) {
  try {
    fsdp::bench::run(fsdp::bench::settings_of(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
