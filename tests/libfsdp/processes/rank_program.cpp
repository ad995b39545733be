// SPDX-License-Identifier: Apache-2.0
// One rank as a separate process: rank_program <event> <the rank it happens to> <timeout, ms>.
// Prints a line when it is about to wait for the others, and how it ended.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <torch/torch.h>

#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/blocks.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/test_device.h"

namespace {

using fsdp::ProcessGroup;

void gather(const std::shared_ptr<ProcessGroup>& group) {
  const auto options =
      at::TensorOptions().dtype(at::kLong).device(fsdp::test::device_of_rank(group->rank()));
  auto output = at::empty({group->size()}, options);
  fsdp::internal::all_gather(group, output, at::full({1}, group->rank(), options),
                             "all-gather of blocks.1")
      .wait();
  TORCH_CHECK(at::equal(output.cpu(), at::arange(group->size(), at::kLong)), output.cpu());
}

// Returns whether a thread of /proc blocks a signal.
bool blocks(const std::filesystem::path& thread, int signal) {
  std::ifstream status(thread / "status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("SigBlk:", 0) == 0) {
      return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
  }
  throw std::runtime_error("no mask of signals in " + thread.string());
}

// Waits until it is killed.
[[noreturn]] void hang() {
  while (true) pause();
}

// As parameters are gathered: by direct copies, if ranks can read each other's memory.
void gather_blocks(const std::shared_ptr<ProcessGroup>& group) {
  const auto own = at::full({1}, group->rank(), at::kLong);
  const auto all = at::empty({group->size()}, at::kLong);
  fsdp::internal::gather_blocks(group, all, own, "all-gather of blocks.1")
      .read(all, [](const fsdp::internal::Blocks&) {});
}

// Trains, saves and loads in turns, until another rank is lost.
[[noreturn]] void train(const std::shared_ptr<ProcessGroup>& group) {
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) {
    model->push_back(torch::nn::Linear(64, 64));
    model->push_back(torch::nn::Tanh());
  }
  fsdp::FsdpOptions options;
  options.process_group = group;
  options.auto_wrap_policy = fsdp::module_wrap_policy<torch::nn::LinearImpl>();
  options.bucket_bytes = 0;
  fsdp::FullyShardedDataParallel<torch::nn::Sequential> sharded(model, options);
  fsdp::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
  fsdp::TrainingState state;
  state.model = &sharded;
  state.optimizers = {&optimizer};
  const std::filesystem::path folder = std::getenv("FSDP_TEST_FOLDER");
  fsdp::SaveOptions overwrite;
  overwrite.overwrite = true;
  overwrite.sync = false;
  for (int round = 0;; ++round) {
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      sharded.forward(torch::ones({8, 64})).sum().backward();
      sharded.clip_grad_norm_(1.0);
      optimizer.step();
    }
    save(folder / "step", state, overwrite);
    load(folder / "step", state);
    std::cout << "round " << round << std::endl;
  }
}

void run(const std::string& event, int victim, const fsdp::ProcessGroupOptions& options) {
  auto group = fsdp::init_process_group(options);
  const bool hit = group->rank() == victim;
  gather(group);
  std::cout << "waiting" << std::endl;
  if (event == "nothing") {
    gather(group);
  } else if (event == "hang") {
    if (hit) hang();
    gather(group);
  } else if (event == "hang in direct copies") {
    if (hit) hang();
    gather_blocks(group);
  } else if (event == "hang beside a child") {
    // Whatever the child holds open must not make its parent look alive.
    if (hit && fork() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(40));
      _exit(0);
    }
    if (hit) hang();
    gather_blocks(group);
  } else if (event == "train") {
    train(group);
  } else if (event == "hang before text") {
    if (hit) hang();
    agree(group, "save step-4", [] {});
  } else if (event == "slow") {
    if (hit) std::this_thread::sleep_for(std::chrono::seconds(9));
    gather(group);
    agree(group, "save step-4", [] {});
  } else if (event == "train on") {
    while (true) {
      gather(group);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } else if (event == "look at signals") {
    const auto subgroup = group->subgroup({0, 1, 2});
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      const bool own = thread.path().filename() == std::to_string(getpid());
      std::cout << (own ? "main" : "other") << " thread: SIGPIPE is "
                << (blocks(thread.path(), SIGPIPE) ? "blocked" : "taken") << std::endl;
    }
    agree(group, "last words", [] {});
  } else if (event == "throw") {
    if (hit) {
      // Like an engine whose forward threw, in a process that then continues for a while.
      fsdp::internal::monitor_of(*group).failed("the batch holds NaN");
      std::this_thread::sleep_for(std::chrono::seconds(8));
      throw std::runtime_error("the batch holds NaN");
    }
    gather(group);
  } else if (event == "end") {
    if (!hit) gather(group);
  } else if (event == "twice") {
    group.reset();
    group = fsdp::init_process_group(options);
    gather(group);
    agree(group, "last words", [] {});
  } else if (event == "last words") {
    for (int i = 0; i < 20; ++i) agree(group, "last words", [] {});
  } else {
    throw std::runtime_error("unknown event: " + event);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  at::set_num_threads(1);
  if (const char* const device = std::getenv("FSDP_TEST_DEVICE");
      device != nullptr && std::string_view(device) == "sim")
    fsdp::test::sim::install(fsdp::test::sim::kMostDevices);
  fsdp::ProcessGroupOptions options;
  options.backend = fsdp::test::backend_of_devices();
  options.timeout = std::chrono::milliseconds(std::atoi(argv[3]));
  options.warn_after = std::chrono::seconds(2);
  options.direct_copies = std::getenv("FSDP_TEST_SOCKETS") == nullptr;
  try {
    run(argv[1], std::atoi(argv[2]), options);
  } catch (const std::exception& error) {
    std::cout << "error: " << fsdp::internal::message_of(error) << std::endl;
    return 1;
  }
  for (const std::string& finding : fsdp::test::sim::take_findings())
    std::cout << "finding: " << finding << std::endl;
  std::cout << "done" << std::endl;
  return 0;
}
