// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: the errors of the others when one is killed, stopped, late or from another
// job.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rank_processes.h"

namespace fsdp::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

Variables torchrun(int rank, int world_size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

std::vector<std::string> program(const std::string& event, int victim, int timeout_ms) {
  return {FSDP_TEST_RANK_PROGRAM, event, std::to_string(victim), std::to_string(timeout_ms)};
}

class ProcessFaults : public ::testing::Test {
 protected:
  void start(int world_size, const std::string& event, int victim, int timeout_ms) {
    const int port = free_port();
    for (int rank = 0; rank < world_size; ++rank) {
      ranks_.start(program(event, victim, timeout_ms), torchrun(rank, world_size, port));
    }
  }

  // Starts three ranks that wait for each other, and sends a signal to one of them.
  void hit(const std::string& event, int victim, int timeout_ms, int signal) {
    start(3, event, victim, timeout_ms);
    for (std::size_t rank = 0; rank < 3; ++rank) ranks_.wait_for_line(rank, "waiting");
    if (signal != 0) ranks_.send(static_cast<std::size_t>(victim), signal);
  }

  void expect_others_say(int victim, const std::string& message) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const auto index = static_cast<std::size_t>(rank);
      EXPECT_EQ(ranks_.wait(index), 1) << ranks_.output(index);
      EXPECT_THAT(ranks_.output(index), ContainsRegex("\nerror: " + message + "\n"));
    }
  }

  Processes ranks_;
};

TEST_F(ProcessFaults, ranks_that_do_well_end_well) {
  for (const int world_size : {1, 2, 4}) {
    Processes ranks;
    const int port = free_port();
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.start(program("last words", 0, 20'000), torchrun(rank, world_size, port));
    }
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_size); ++rank) {
      EXPECT_EQ(ranks.wait(rank), 0) << ranks.output(rank);
    }
  }
}

// The other tests are about waits of the host for Gloo, and run on the CPU alone.
TEST_F(ProcessFaults, ranks_with_simulated_devices_end_well) {
  const int port = free_port();
  for (int rank = 0; rank < 3; ++rank) {
    Variables variables = torchrun(rank, 3, port);
    variables["FSDP_TEST_DEVICE"] = "sim";
    ranks_.start(program("nothing", 0, 20'000), variables);
  }
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks_.wait(rank), 0) << ranks_.output(rank);
    EXPECT_THAT(ranks_.output(rank), Not(HasSubstr("finding")));
  }
}

TEST_F(ProcessFaults, a_killed_rank_is_named) {
  hit("hang", 1, 600'000, SIGKILL);
  expect_others_say(1, "all-gather of blocks.1: .*; rank 1 failed: its process has ended: .*");
}

TEST_F(ProcessFaults, a_rank_that_is_killed_in_a_save_is_named) {
  hit("hang before text", 1, 600'000, SIGKILL);
  expect_others_say(1,
                    "save step-4: rank 1 did not arrive: another rank failed; rank 1 failed: its "
                    "process has ended: .*");
}

TEST_F(ProcessFaults, a_killed_rank_0_is_named_in_a_save) {
  hit("hang before text", 0, 600'000, SIGKILL);
  expect_others_say(0, "save step-4: the store of rank 0 is gone: rank 0 has ended");
}

// The rank that watches the other is among them.
TEST_F(ProcessFaults, neighbours_that_are_killed_together_are_named) {
  start(4, "hang before text", 2, 600'000);
  for (std::size_t rank = 0; rank < 4; ++rank) ranks_.wait_for_line(rank, "waiting");
  ranks_.send(1, SIGKILL);
  ranks_.send(2, SIGKILL);
  for (const std::size_t rank : {0U, 3U}) {
    EXPECT_EQ(ranks_.wait(rank), 1);
    EXPECT_THAT(ranks_.output(rank), ContainsRegex("rank [12] failed: its process has ended"));
  }
}

TEST_F(ProcessFaults, a_slow_rank_is_named_while_it_is_waited_for_and_no_error) {
  start(3, "slow", 1, 60'000);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks_.wait(rank), 0) << ranks_.output(rank);
    if (rank == 1) continue;
    EXPECT_THAT(ranks_.output(rank),
                ContainsRegex("rank " + std::to_string(rank) +
                              " has waited [0-9]+ s for all-gather of blocks.1; rank 1 is at "
                              "all-gather of blocks.1, 1 collective behind"));
  }
}

TEST_F(ProcessFaults, a_stopped_rank_is_named_before_the_timeout) {
  hit("hang", 2, 12'000, SIGSTOP);
  expect_others_say(2, "all-gather of blocks.1: not done within 12 s; .*");
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_THAT(ranks_.output(rank),
                ContainsRegex(" has waited [0-9]+ s for all-gather of blocks.1; rank 2 has given "
                              "no sign of life for [0-9]+ s"));
  }
}

TEST_F(ProcessFaults, a_stopped_rank_that_wakes_when_the_others_have_ended_ends_too) {
  for (const std::size_t victim : {0U, 1U}) {
    Processes ranks;
    const int port = free_port();
    for (int rank = 0; rank < 3; ++rank) {
      ranks.start(program("train on", 0, 2000), torchrun(rank, 3, port));
    }
    for (std::size_t rank = 0; rank < 3; ++rank) ranks.wait_for_line(rank, "waiting");
    ranks.send(victim, SIGSTOP);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(ranks.wait(rank), 1) << ranks.output(rank);
    }
    ranks.send(victim, SIGCONT);
    EXPECT_EQ(ranks.wait(victim), 1) << ranks.output(victim);
  }
}

// A write to a rank that has ended is an error that names it, and does not kill the writer.
TEST_F(ProcessFaults, no_thread_of_the_library_takes_the_signal_of_broken_pipes) {
  start(3, "look at signals", 0, 20'000);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks_.wait(rank), 0) << ranks_.output(rank);
    EXPECT_THAT(ranks_.output(rank), HasSubstr("main thread: SIGPIPE is taken\n"));
    EXPECT_THAT(ranks_.output(rank), HasSubstr("other thread: SIGPIPE is blocked\n"));
    EXPECT_THAT(ranks_.output(rank), Not(HasSubstr("other thread: SIGPIPE is taken\n")));
  }
}

TEST_F(ProcessFaults, a_killed_rank_0_is_named) {
  hit("hang", 0, 60'000, SIGKILL);
  expect_others_say(0, "all-gather of blocks.1: .*; the store of rank 0 is gone: rank 0 has ended");
}

TEST_F(ProcessFaults, killed_ranks_are_named_in_direct_copies) {
  hit("hang in direct copies", 1, 600'000, SIGKILL);
  expect_others_say(1, "all-gather of blocks.1: .*; rank 1 failed: its process has ended: .*");
}

TEST_F(ProcessFaults, a_killed_rank_0_is_named_in_direct_copies) {
  hit("hang in direct copies", 0, 600'000, SIGKILL);
  expect_others_say(0, "all-gather of blocks.1: .*; the store of rank 0 is gone: rank 0 has ended");
}

TEST_F(ProcessFaults, a_child_of_a_killed_rank_does_not_hide_its_end) {
  hit("hang beside a child", 1, 600'000, SIGKILL);
  expect_others_say(1, "all-gather of blocks.1: .*; rank 1 failed: its process has ended: .*");
}

TEST_F(ProcessFaults, a_child_of_a_killed_rank_0_does_not_hide_its_end) {
  hit("hang beside a child", 0, 600'000, SIGKILL);
  expect_others_say(0, "all-gather of blocks.1: .*; the store of rank 0 is gone: rank 0 has ended");
}

TEST_F(ProcessFaults, a_host_that_is_not_known_is_named) {
  auto variables = torchrun(1, 2, free_port());
  variables["MASTER_ADDR"] = "no-such-host.invalid";
  ranks_.start(program("nothing", 0, 600'000), variables);
  EXPECT_EQ(ranks_.wait(0), 1);
  EXPECT_THAT(ranks_.output(0),
              ContainsRegex("error: the address of rank 0, 'no-such-host.invalid', "
                            "cannot be resolved here: .*; set MASTER_ADDR"));
}

// It takes connections, and says nothing.
TEST_F(ProcessFaults, a_port_where_something_else_listens_is_named) {
  const int port = free_port();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  ranks_.start(program("nothing", 0, 7000), torchrun(1, 2, port));
  EXPECT_EQ(ranks_.wait(0), 1);
  EXPECT_THAT(ranks_.output(0), HasSubstr("has not answered as the store of rank 0 for 5 s"));
  EXPECT_THAT(ranks_.output(0),
              ContainsRegex("\nerror: what listens at 127.0.0.1:[0-9]+ has not answered as the "
                            "store of rank 0 for 7 s: .*; set MASTER_PORT"));
  close(fd);
}

TEST_F(ProcessFaults, a_stopped_rank_is_named_at_the_timeout) {
  hit("hang", 2, 2000, SIGSTOP);
  expect_others_say(2,
                    "all-gather of blocks.1: not done within 2 s; rank 2 has given no sign of life "
                    "for [0-9]+ s");
}

TEST_F(ProcessFaults, a_stopped_rank_0_is_named_at_the_timeout) {
  hit("hang", 0, 2000, SIGSTOP);
  expect_others_say(0,
                    "all-gather of blocks.1: not done within 2 s; rank 0 has given no sign of life "
                    "for [0-9]+ s: its store does not answer");
}

TEST_F(ProcessFaults, a_stopped_rank_0_does_not_hold_up_what_goes_through_the_store) {
  hit("hang before text", 0, 2000, SIGSTOP);
  expect_others_say(0,
                    "save step-4: the store of rank 0 has not answered for [0-9]+ m?s: rank 0 is "
                    "stopped or out of reach");
}

TEST_F(ProcessFaults, a_rank_that_hangs_in_its_own_code_is_named_with_its_place) {
  hit("hang", 1, 2000, 0);
  expect_others_say(1,
                    "all-gather of blocks.1: not done within 2 s; rank 1 is at all-gather of "
                    "blocks.1, 1 collective behind");
}

TEST_F(ProcessFaults, a_rank_that_throws_stops_the_others_and_says_why) {
  hit("throw", 1, 60'000, 0);
  expect_others_say(1,
                    "all-gather of blocks.1: another rank failed; rank 1 failed: the batch holds "
                    "NaN");
}

TEST_F(ProcessFaults, a_rank_that_ends_early_is_named) {
  hit("end", 1, 60'000, 0);
  expect_others_say(1, "all-gather of blocks.1: .*; rank 1 has ended");
  EXPECT_EQ(ranks_.wait(1), 0) << ranks_.output(1);
}

TEST_F(ProcessFaults, ranks_that_never_start_are_named) {
  const int port = free_port();
  const auto command = program("nothing", 0, 2000);
  ranks_.start(command, torchrun(0, 4, port));
  ranks_.start(command, torchrun(2, 4, port));
  for (const std::size_t process : {0U, 1U}) {
    EXPECT_EQ(ranks_.wait(process), 1);
    EXPECT_THAT(ranks_.output(process),
                HasSubstr("error: ranks 1, 3 of 4 did not join within 2 s\n"));
  }
}

TEST_F(ProcessFaults, a_rank_0_that_never_starts_is_named) {
  const int port = free_port();
  ranks_.start(program("nothing", 0, 2000), torchrun(1, 2, port));
  EXPECT_EQ(ranks_.wait(0), 1);
  EXPECT_THAT(ranks_.output(0), HasSubstr("error: rank 0 did not open the store at 127.0.0.1:" +
                                          std::to_string(port) + " within 2 s"));
}

TEST_F(ProcessFaults, ranks_with_other_world_sizes_are_named) {
  const int port = free_port();
  ranks_.start(program("nothing", 0, 20'000), torchrun(0, 2, port));
  ranks_.start(program("nothing", 0, 20'000), torchrun(1, 3, port));
  for (const std::size_t process : {0U, 1U}) {
    EXPECT_EQ(ranks_.wait(process), 1);
    EXPECT_THAT(ranks_.output(process), HasSubstr("was started with a world size of "));
  }
}

TEST_F(ProcessFaults, a_port_that_is_taken_is_named) {
  const int port = free_port();
  ranks_.start(program("hang", 0, 20'000), torchrun(0, 2, port));
  ranks_.start(program("hang", 0, 20'000), torchrun(1, 2, port));
  ranks_.wait_for_line(0, "waiting");
  const auto other_job = ranks_.start(program("nothing", 0, 2000), torchrun(0, 2, port));
  EXPECT_EQ(ranks_.wait(other_job), 1);
  EXPECT_THAT(ranks_.output(other_job),
              ContainsRegex("error: rank 0 cannot open its store at port " + std::to_string(port) +
                            ": .*; set MASTER_PORT to a free port"));
}

TEST_F(ProcessFaults, jobs_follow_one_another_in_one_process) {
  start(3, "twice", 0, 20'000);
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(ranks_.wait(rank), 0) << ranks_.output(rank);
}

TEST_F(ProcessFaults, without_a_port_torchruns_variables_are_incomplete) {
  auto variables = torchrun(0, 2, 1);
  variables.erase("MASTER_PORT");
  ranks_.start(program("nothing", 0, 2000), variables);
  EXPECT_EQ(ranks_.wait(0), 1);
  EXPECT_THAT(ranks_.output(0), HasSubstr("error: MASTER_PORT is not set"));
}

TEST_F(ProcessFaults, without_a_launcher_the_error_lists_them) {
  ranks_.start(program("nothing", 0, 2000), {});
  EXPECT_EQ(ranks_.wait(0), 1);
  EXPECT_THAT(ranks_.output(0), HasSubstr("error: no launcher's variables are set (torchrun's"));
}

TEST_F(ProcessFaults, ranks_of_open_mpi_and_slurm_find_each_other) {
  const std::string job = std::to_string(free_port());
  for (const bool slurm : {false, true}) {
    Processes ranks;
    for (int r = 0; r < 3; ++r) {
      const std::string rank = std::to_string(r);
      ranks.start(program("last words", 0, 20'000),
                  slurm ? Variables{{"SLURM_PROCID", rank},
                                    {"SLURM_NTASKS", "3"},
                                    {"SLURM_LOCALID", rank},
                                    {"SLURM_NODELIST", "node7"},
                                    {"SLURM_JOB_ID", job}}
                        : Variables{{"OMPI_COMM_WORLD_RANK", rank},
                                    {"OMPI_COMM_WORLD_SIZE", "3"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                    {"PMIX_NAMESPACE", job}});
    }
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.wait(r), 0) << ranks.output(r);
  }
}

}  // namespace
}  // namespace fsdp::test
