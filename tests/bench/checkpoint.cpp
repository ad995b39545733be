// SPDX-License-Identifier: Apache-2.0
// One rank of a checkpoint benchmark: save, load and async_save of a sharded state.  For
// checkpoint.py, which starts one process a rank and tells it what to do by lines:
//   save <folder> | load <folder> | async <folder> | quit
// After each, rank 0 prints the seconds it took (async: until it returned, and until it was saved);
// every rank prints its peak resident memory in bytes when it quits.
#include "libfsdp/checkpoint.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "libfsdp/internal/collectives.h"
#include "libfsdp/process_group.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tensors of 16 MiB, as layers of a model have them.
fsdp::StateDict state_of(const fsdp::ProcessGroup& group, std::int64_t mebibytes) {
  fsdp::StateDict state;
  for (std::int64_t i = 0; i < mebibytes / 16; ++i) {
    fsdp::ShardedTensor tensor;
    const std::int64_t shape[] = {2048, 2048};
    tensor.layout = fsdp::shard_layout(shape, group.size());
    tensor.part = group.rank();
    tensor.local = at::randn(tensor.layout.shape_of(tensor.part));
    state.set("layers." + std::to_string(i) + ".weight", std::move(tensor));
  }
  return state;
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
    fsdp::barrier(group, "start");
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
    fsdp::barrier(group, "end");
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
