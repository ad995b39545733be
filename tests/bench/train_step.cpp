// SPDX-License-Identifier: Apache-2.0
// One rank that trains the GPT of gpt.h and times its steps; train.py starts the ranks like
// torchrun.
// Run: bench_train_step NAME=VALUE... [-- NAME=VALUE...]...        see kDefaults
// Trains once for each group of settings; device and backend are those of the first.
// Prints one line of JSON for each training and rank; milliseconds are of a whole step, with the
// optimizer.  A training that fails prints a line with its error, and the next one begins.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/memory_estimate.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "tests/bench/gpt.h"
#include "tests/bench/step_profile.h"

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
    {"bf16", "0"},       // 1: parameters and activations in bfloat16; unsharded: autocast
    {"device", "cpu"},   // or cuda, if the program links fsdp::cuda
    {"backend", ""},     // empty: that of the device
    {"trace", ""},       // the file for a trace of one more step
    {"estimate", "0"},   // ranks of which to print the memory, in MiB, instead of training
};

std::vector<Settings> settings_of(int argc, char** argv) {
  std::vector<Settings> all{kDefaults};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") {
      all.push_back(kDefaults);
      continue;
    }
    const auto equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    TORCH_CHECK(equals != std::string::npos && kDefaults.contains(name),
                "expected NAME=VALUE of a known name, but got '", argument, "'");
    all.back()[name] = argument.substr(equals + 1);
  }
  return all;
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

// What the device's allocator did since it was last asked.
class DeviceMemory {
 public:
  explicit DeviceMemory(const c10::Device& device) : device_(device) {}

  // Gives what no tensor uses back to the device.
  void clear() {
    if (!device_.is_cpu()) allocator().emptyCache();
  }
  void begin() {
    if (device_.is_cpu()) return;
    allocator().resetPeakStats(device_.index());
    allocations_ = stats().allocation.at(kAll).allocated;
  }
  // Returns the most memory that tensors had at a time.
  double peak_mib() {
    if (device_.is_cpu()) return 0;
    return static_cast<double>(stats().allocated_bytes.at(kAll).peak) / (1 << 20);
  }
  std::int64_t allocations() {
    if (device_.is_cpu()) return 0;
    return stats().allocation.at(kAll).allocated - allocations_;
  }

 private:
  static constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

  c10::DeviceAllocator& allocator() const { return *c10::getDeviceAllocator(device_.type()); }
  c10::CachingDeviceAllocator::DeviceStats stats() const {
    return allocator().getDeviceStats(device_.index());
  }

  const c10::Device device_;
  std::int64_t allocations_ = 0;
};

struct Timing {
  std::vector<double> step_ms;
  std::vector<double> host_ms;  // until all of a step was issued
  double cpu_ms_per_step = 0;
  double device_mib = 0;
  double allocations_per_step = 0;
  StepProfile profile;
  int steps = 0;  // with the first ones, and with the one that was profiled
  std::vector<float> losses;
};

template <typename Forward>
Timing train(const Settings& settings, const Sizes& sizes,
             const std::shared_ptr<ProcessGroup>& group, torch::optim::Optimizer& optimizer,
             const Forward& forward) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const int warmup = std::stoi(settings.at("warmup"));
  const int steps = std::stoi(settings.at("steps"));
  const c10::Device device = group->device();
  Timing timing;
  DeviceMemory memory(device);
  double cpu = 0;
  std::optional<StepProfiler> profiler;
  for (int step = 0; step <= warmup + steps; ++step) {
    const bool timed = step >= warmup && step < warmup + steps;
    const at::Tensor batch = tokens(sizes, step, group->rank()).to(device);
    synchronize(device);
    if (step == warmup) {
      barrier(group, "before the first timed step");
      memory.begin();
      cpu = cpu_ms();
    }
    if (step == warmup + steps) {
      timing.cpu_ms_per_step = (cpu_ms() - cpu) / steps;
      timing.allocations_per_step = static_cast<double>(memory.allocations()) / steps;
      timing.device_mib = memory.peak_mib();
      // One more, with the profiler, where that tells something.
      if (device.is_cpu() && settings.at("trace").empty()) break;
      profiler.emplace(device);
    }
    const auto begin = Clock::now();
    const at::Tensor logits = forward(batch.narrow(1, 0, sizes.length));
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1).to(at::kFloat), batch.narrow(1, 1, sizes.length).flatten());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    const Milliseconds issued = Clock::now() - begin;
    synchronize(device);
    const Milliseconds taken = Clock::now() - begin;
    ++timing.steps;
    if (timed) {
      timing.step_ms.push_back(taken.count());
      timing.host_ms.push_back(issued.count());
    }
    if (!profiler) timing.losses.push_back(loss.item<float>());
  }
  if (profiler) timing.profile = profiler->end(settings.at("trace"));
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const Timing& timing, const ProcessGroup& group, const std::string& rest) {
  std::ostringstream line;
  line.precision(9);
  line << "{\"rank\": " << group.rank() << ", \"median_ms\": " << median(timing.step_ms)
       << ", \"min_ms\": " << *std::min_element(timing.step_ms.begin(), timing.step_ms.end())
       << ", \"host_ms\": " << median(timing.host_ms) << ", \"cpu_ms\": " << timing.cpu_ms_per_step
       << ", \"peak_mib\": " << peak_mib() << ", \"device_mib\": " << timing.device_mib
       << ", \"device_ms\": " << timing.profile.busy_ms
       << ", \"kernels\": " << timing.profile.kernels
       << ", \"allocations\": " << timing.allocations_per_step
       << ", \"first_loss\": " << timing.losses.front()
       << ", \"last_loss\": " << timing.losses.back() << rest << "}\n";
  std::cout << line.str() << std::flush;
}

// Prints a message, and its first line as the error of a training.
void print_error(const std::string& message, const ProcessGroup& group) {
  std::cerr << message << '\n';
  std::string text = message.substr(0, message.find('\n'));
  std::replace(text.begin(), text.end(), '"', '\'');
  std::replace(text.begin(), text.end(), '\\', '/');
  std::cout << "{\"rank\": " << group.rank() << ", \"error\": \"" << text << "\"}" << std::endl;
}

void run_unsharded(const Settings& settings, const Sizes& sizes, GPT& model,
                   const std::shared_ptr<ProcessGroup>& group) {
  const auto optimizer = optimizer_of(settings, model->parameters());
  const c10::DeviceType type = group->device().type();
  const bool autocast = settings.at("bf16") == "1";
  if (autocast) at::autocast::set_autocast_dtype(type, at::kBFloat16);
  const auto forward = [&](const at::Tensor& x) {
    at::autocast::set_autocast_enabled(type, autocast);
    const at::Tensor y = model(x);
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::clear_cache();
    return y;
  };
  print(train(settings, sizes, group, *optimizer, forward), *group, "");
}

void run(const Settings& settings, const std::shared_ptr<ProcessGroup>& group) {
  const auto number = [&](const char* name) { return std::stoll(settings.at(name)); };
  const Sizes sizes{number("width"), number("layers"), number("vocabulary"), number("length"),
                    number("batch")};
  DeviceMemory(group->device()).clear();
  // Values are drawn where the model computes: billions of them would take long on the CPU.
  GPT model = [&] {
    const MetaDevice meta;
    return GPT(sizes);
  }();
  materialize(*model, group->device());
  initialize(*model);
  if (settings.at("sharded") == "0") {
    run_unsharded(settings, sizes, model, group);
    return;
  }
  FullyShardedDataParallel<GPT> sharded(model, options_of(settings, model, group));
  const auto optimizer = optimizer_of(settings, sharded.parameters());
  const Timing timing = train(settings, sizes, group, *optimizer,
                              [&](const at::Tensor& x) { return sharded.forward(x); });
  const EngineStats& stats = engine_of(sharded).stats();
  const auto all_steps = static_cast<double>(timing.steps);
  std::ostringstream rest;
  rest << ", \"gathers\": " << static_cast<double>(stats.gathers) / all_steps
       << ", \"reductions\": " << static_cast<double>(stats.reductions) / all_steps;
  print(timing, *group, rest.str());
}

void print_estimate(const Settings& settings) {
  const auto number = [&](const char* name) { return std::stoll(settings.at(name)); };
  const MetaDevice meta;
  const GPT model(Sizes{number("width"), number("layers"), number("vocabulary"), number("length"),
                        number("batch")});
  TrainingSetup setup;
  setup.world_size = std::stoi(settings.at("estimate"));
  setup.adds_while_scattering = true;
  const MemoryEstimate found = estimate_memory(*model, options_of(settings, model, nullptr), setup);
  std::cout << "{\"mib\": " << static_cast<double>(found.on_device()) / (1 << 20) << "}\n";
}

// Returns whether all trainings succeeded.
bool run_all(const std::vector<Settings>& all) {
  torch::set_num_threads(1);
  ProcessGroupOptions ranks;
  ranks.device_id = c10::Device(all.front().at("device"));
  ranks.backend = all.front().at("backend");
  const auto group = init_process_group(ranks);
  bool good = true;
  for (const Settings& settings : all) {
    try {
      run(settings, group);
    } catch (const std::exception& error) {
      good = false;
      print_error(message_of(error), *group);
    }
  }
  return good;
}

}  // namespace
}  // namespace fsdp::bench

int main(int argc, char** argv) {
  try {
    const auto all = fsdp::bench::settings_of(argc, argv);
    if (all.front().at("estimate") != "0") {
      fsdp::bench::print_estimate(all.front());
      return 0;
    }
    if (fsdp::bench::run_all(all)) return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 2;
}
