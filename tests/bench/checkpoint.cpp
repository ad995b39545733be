// SPDX-License-Identifier: Apache-2.0
// One rank of a checkpoint benchmark: save, load and async_save of a GPT and AdamW's state. Used by
// checkpoint.py, which starts one process for each rank and sends commands as lines:
//   save <folder> | load <folder> | async <folder> | quit
// After each, rank 0 prints the seconds it took (async: until it returned, and until it was saved);
// every rank prints its peak resident memory in bytes when it quits.
#include "libfsdp/checkpoint.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/process_group.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kWidth = 1024;
constexpr std::int64_t kVocabulary = 4096;
// Bytes of a parameter and AdamW's two averages, float32.
constexpr std::int64_t kBytesOfParameter = 12;

// Returns the parameters of a GPT with as many blocks as take about `mebibytes` with AdamW's state;
// checkpoint.py has the same.
std::vector<std::pair<std::string, Shape>> parameters_of(std::int64_t mebibytes) {
  const std::int64_t block = 12 * kWidth * kWidth + 13 * kWidth;
  const std::int64_t all = (mebibytes << 20) / kBytesOfParameter;
  const std::int64_t blocks = std::max<std::int64_t>(1, (all - 2 * kVocabulary * kWidth) / block);
  std::vector<std::pair<std::string, Shape>> result = {{"emb.weight", {kVocabulary, kWidth}}};
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::string prefix = "blocks." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
      const Shape weight = columns == 0 ? Shape{rows} : Shape{rows, columns};
      result.emplace_back(prefix + name + ".weight", weight);
      result.emplace_back(prefix + name + ".bias", Shape{rows});
    };
    add("ln1", kWidth, 0);
    add("qkv", 3 * kWidth, kWidth);
    add("proj", kWidth, kWidth);
    add("ln2", kWidth, 0);
    add("up", 4 * kWidth, kWidth);
    add("down", kWidth, 4 * kWidth);
  }
  result.emplace_back("head.weight", Shape{kVocabulary, kWidth});
  return result;
}

fsdp::ShardedTensor sharded(const fsdp::ProcessGroup& group, const Shape& shape) {
  fsdp::ShardedTensor tensor;
  tensor.layout = fsdp::shard_layout(shape, group.size());
  tensor.part = group.rank();
  tensor.local = at::randn(tensor.layout.shape_of(tensor.part));
  return tensor;
}

// Returns what train_gpt saves: the model and AdamW's state by name.
fsdp::StateDict state_of(const fsdp::ProcessGroup& group, std::int64_t mebibytes) {
  fsdp::StateDict model;
  fsdp::StateDict states;
  fsdp::StateList names;
  for (const auto& [name, shape] : parameters_of(mebibytes)) {
    model.set(name, sharded(group, shape));
    states.set(name, fsdp::StateDict{{"step", at::scalar_tensor(400.0)},
                                     {"exp_avg", sharded(group, shape)},
                                     {"exp_avg_sq", sharded(group, shape)}});
    names.emplace_back(name);
  }
  const fsdp::StateDict options{{"lr", 1e-3},       {"betas", fsdp::StateTuple{{0.9, 0.95}}},
                                {"eps", 1e-8},      {"weight_decay", 0.01},
                                {"amsgrad", false}, {"params", std::move(names)}};
  return {{"model", std::move(model)},
          {"optimizer_0", fsdp::StateDict{{"state", std::move(states)},
                                          {"param_groups", fsdp::StateList{options}}}}};
}

void run(std::int64_t mebibytes) {
  const auto group = fsdp::init_process_group();
  fsdp::StateDict state = state_of(*group, mebibytes);
  fsdp::AsyncSaver saver(group);
  std::string what;
  std::string folder;
  std::cout << "ready" << std::endl;
  while (std::cin >> what && what != "quit") {
    std::cin >> folder;
    fsdp::internal::barrier(group, "start");
    const double begin = seconds();
    double returned = 0;
    if (what == "save") {
      fsdp::save(folder, state, group);
    } else if (what == "load") {
      fsdp::load(folder, state, group);
    } else {
      saver.async_save(folder, state);
      returned = seconds() - begin;
      saver.wait();
    }
    fsdp::internal::barrier(group, "end");
    std::cout << (what == "async" ? std::to_string(returned) + " " : "") << seconds() - begin
              << std::endl;
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::cout << usage.ru_maxrss * 1024 << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  at::set_num_threads(1);
  try {
    run(std::atoll(argv[1]));
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
