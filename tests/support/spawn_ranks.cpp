// SPDX-License-Identifier: Apache-2.0
#include "tests/support/spawn_ranks.h"

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "tests/support/test_device.h"

namespace fsdp::test {
using namespace internal;
namespace {

struct Outcome {
  std::string message;  // empty if the rank succeeded
  bool by_itself = false;
};

Outcome run_rank(const ProcessGroupOptions& options, const RankBody& body) {
  std::shared_ptr<ProcessGroup> group;
  Outcome outcome;
  const c10::OptionalDeviceGuard device(device_of_rank(*options.rank));
  try {
    group = init_process_group(options);
    body(group);
    return outcome;
  } catch (const PeerError& error) {
    outcome.message = message_of(error);
  } catch (const std::exception& error) {
    outcome = {message_of(error), true};
  } catch (...) {
    outcome = {"an exception of unknown type", true};
  }
  if (group) monitor_of(*group).failed(outcome.message);
  return outcome;
}

// MKL finds out at its first vector function which processor this is.  A thread that comes
// meanwhile gets the functions of another one, whose results differ in the last bit: of 300
// processes in which two threads took their first tanh at once, 4 had two results for one input.
void let_mkl_know_the_processor() {
  const at::DisableRecordFunctionGuard no_observers;
  static const at::Tensor first = at::exp(at::zeros({8}));
}

}  // namespace

void spawn_ranks(int world_size, const RankBody& body, std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.timeout = timeout;
  options.world_size = world_size;
  spawn_ranks(std::move(options), body);
}

void spawn_ranks(ProcessGroupOptions options, const RankBody& body) {
  let_mkl_know_the_processor();
  const int world_size = options.world_size.value();
  options.backend = backend_of_devices();
  options.store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world_size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      options.rank = rank;
      threads.emplace_back([&outcome = outcomes[static_cast<std::size_t>(rank)], options, &body] {
        outcome = run_rank(options, body);
      });
    }
  }
  std::string failures;
  for (const bool by_itself : {true, false}) {
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const auto& outcome = outcomes[rank];
      if (outcome.message.empty() || outcome.by_itself != by_itself) continue;
      failures +=
          (failures.empty() ? "rank " : "\nrank ") + std::to_string(rank) + ": " + outcome.message;
    }
  }
  if (!failures.empty()) throw std::runtime_error(failures);
}

}  // namespace fsdp::test
