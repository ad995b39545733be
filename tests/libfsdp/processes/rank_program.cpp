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
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/peer_error.h"
#include "libfsdp/internal/comm/rank_monitor.h"
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
      group->monitor().failed("the batch holds NaN");
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
