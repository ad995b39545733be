// SPDX-License-Identifier: Apache-2.0
#include "tools/command/launcher.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::cli {
namespace {

// Those that launchers of jobs start are in tests/mpi.
TEST(Launcher, a_program_that_a_task_starts_is_not_a_task) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    ASSERT_EQ(::setenv(variable, "8", 1), 0);
  const auto launch = launched_with_others();
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    ::unsetenv(variable);
  EXPECT_FALSE(launch.has_value()) << launch->launcher;
}

}  // namespace
}  // namespace fsdp::cli
