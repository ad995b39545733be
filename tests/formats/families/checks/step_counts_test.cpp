// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/step_counts.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/dcp_folder.h"

namespace fsdp::formats {
namespace {

struct Counted {
  std::string key;
  std::string file;
  int steps;
};

// "file: message" of each warning about a folder with these counters.
std::vector<std::string> warnings(const std::vector<Counted>& counters) {
  test::DcpFolder folder;
  for (const Counted& counter : counters) {
    test::TorchZip zip;
    zip.root = test::integer(counter.steps);
    folder.metadata.values.push_back({counter.key, folder.append(zip.bytes(), counter.file)});
  }
  const auto checkpoint = folder.open();
  Findings findings;
  check_step_counts(*checkpoint, findings, nullptr);
  std::vector<std::string> out;
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Finding::Severity::kWarning);
    EXPECT_EQ(finding.code, ErrorCode::kMismatch);
    out.push_back(finding.file + ": " + finding.message);
  }
  return out;
}

const char* const kFiles[] = {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"};

TEST(StepCounts, a_file_that_counts_other_steps_than_most_is_named) {
  const std::vector<std::string> found = warnings({{"optim.state.a.step", kFiles[0], 20},
                                                   {"optim.state.b.step", kFiles[1], 10},
                                                   {"optim.state.c.step", kFiles[2], 20}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0],
            "__1_0.distcp: the states of an optimizer in this file count up to 10 steps, those in "
            "__0_0.distcp up to 20: the files are from two saves");
}

TEST(StepCounts, parameters_that_joined_later_count_fewer_steps_in_any_file) {
  EXPECT_TRUE(warnings({{"optim.state.a.step", kFiles[0], 20},
                        {"optim.state.b.step", kFiles[0], 3},
                        {"optim.state.c.step", kFiles[1], 20},
                        {"optim.state.d.step", kFiles[1], 5}})
                  .empty());
}

TEST(StepCounts, optimizers_count_for_themselves_and_other_numbers_do_not) {
  EXPECT_TRUE(warnings({{"optim.0.state.a.step", kFiles[0], 20},
                        {"optim.1.state.a.step", kFiles[1], 10},
                        {"scheduler.step", kFiles[2], 7},
                        {"optim.0.state.a.steps", kFiles[2], 8}})
                  .empty());
  EXPECT_EQ(warnings({{"state.a.step", kFiles[0], 20}, {"state.b.step", kFiles[1], 10}}).size(),
            1U);
  EXPECT_TRUE(warnings({{"state.a.step", kFiles[0], 20}, {"state.b.step", kFiles[0], 10}}).empty());
}

}  // namespace
}  // namespace fsdp::formats
