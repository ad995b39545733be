// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_tests.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test {
namespace {

constexpr std::size_t kMostShown = 4;

class FindingsFail final : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo&) override {
    sim::take_findings();
    sim::set_progress(sim::Progress::kLate);
    for (int device = 0; device < sim::device_count(); ++device) sim::reset_counters(device);
  }
  void OnTestEnd(const testing::TestInfo&) override {
    // Copies that are still on their way are looked at, too.
    for (int device = 0; device < sim::device_count(); ++device) sim::synchronize(device);
    const std::vector<std::string> findings = sim::take_findings();
    for (std::size_t i = 0; i < std::min(findings.size(), kMostShown); ++i)
      ADD_FAILURE() << "finding " << i + 1 << " of " << findings.size() << ": " << findings[i];
  }
};

}  // namespace

int run_tests(int argc, char** argv, bool on_sim) {
  testing::InitGoogleTest(&argc, argv);
  if (on_sim) {
    // Kernels are small, and threads that rest take time from those of other ranks.
    at::set_num_threads(1);
    sim::install(sim::kMostDevices);
    testing::UnitTest::GetInstance()->listeners().Append(new FindingsFail);
  }
  return RUN_ALL_TESTS();
}

}  // namespace fsdp::test
