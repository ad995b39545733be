// SPDX-License-Identifier: Apache-2.0
// One rank that shards a module of the meta device; meta_start.py starts the ranks like torchrun.
// Run: bench_meta_start WIDTH BLOCKS SYNC
// Prints one line of JSON: bytes of memory before, at the peak of the construction, of the shards,
// and of the largest unit; and the seconds it took.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/process_group.h"

namespace fsdp::bench {
namespace {

// Returns a number of /proc/self/status in bytes: "VmRSS", "VmHWM".
std::int64_t memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  TORCH_CHECK(false, "no ", name, " in /proc/self/status");
}

void reset_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << 5;
  TORCH_CHECK(refs.flush(), "cannot write /proc/self/clear_refs");
}

// Three layers of 4 * width^2 parameters.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width) {
    add("up", width, 4 * width);
    add("down", 4 * width, width);
    add("out", width, 4 * width);
  }
  void add(const std::string& name, std::int64_t in, std::int64_t out) {
    register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  }
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  ModelImpl(std::int64_t width, int blocks) {
    for (int i = 0; i < blocks; ++i) register_module("block" + std::to_string(i), Block(width));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Model);

void run(std::int64_t width, int blocks, bool sync) {
  const auto group = init_process_group();
  Model model = [&] {
    const MetaDevice meta;
    return Model(width, blocks);
  }();
  FsdpOptions options;
  options.process_group = group;
  options.auto_wrap_policy = module_wrap_policy<BlockImpl>();
  options.sync_module_states = sync;
  const std::int64_t before = memory("VmRSS");
  reset_peak();
  const auto began = std::chrono::steady_clock::now();
  const FullyShardedDataParallel<Model> sharded(model, options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::int64_t shards = 0;
  std::int64_t largest = 0;
  for (const auto& unit : internal::engine_of(sharded).units()) {
    shards += static_cast<std::int64_t>(unit->local.nbytes());
    largest = std::max(largest, unit->gather_bytes * group->size());
  }
  std::cout << "{\"rank\": " << group->rank() << ", \"before\": " << before
            << ", \"peak\": " << memory("VmHWM") << ", \"shards\": " << shards
            << ", \"largest_unit\": " << largest << ", \"seconds\": " << took.count() << "}\n";
}

}  // namespace
}  // namespace fsdp::bench

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 4, "expected WIDTH BLOCKS SYNC");
    fsdp::bench::run(std::stoll(argv[1]), std::stoi(argv[2]), std::string(argv[3]) == "1");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
