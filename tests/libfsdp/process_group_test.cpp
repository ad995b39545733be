// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/process_group.h"

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "tests/libfsdp/error_of.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
using namespace internal;
namespace {

using test::spawn_ranks;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The sum of the global ranks of a group.
std::int64_t sum_of_ranks(const std::shared_ptr<ProcessGroup>& group) {
  const int rank = group->global_rank(group->rank());
  const bool has_device = group->backend_name() == "sim";
  auto sum = at::full({1}, rank,
                      at::TensorOptions().dtype(at::kLong).device(
                          has_device ? test::device_of_rank(rank) : at::kCPU));
  all_reduce(group, sum, ReduceOp::kSum, "sum of ranks").wait();
  return sum.item<std::int64_t>();
}

TEST(ProcessGroup, tells_rank_size_and_backend) {
  for (const int world : {1, 2, 3, 4}) {
    spawn_ranks(world, [&](const auto& group) {
      TORCH_CHECK(group->size() == world && group->rank() < world);
      TORCH_CHECK(group->backend_name() == test::backend_of_devices());
      TORCH_CHECK(group->timeout() == std::chrono::seconds(20));
      TORCH_CHECK(group->global_rank(group->rank()) == group->rank());
    });
  }
}

TEST(ProcessGroup, one_rank_needs_no_store) {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  const auto group = init_process_group(options);
  EXPECT_EQ(sum_of_ranks(group), 0);
  EXPECT_EQ(group->subgroup({0})->size(), 1);
  EXPECT_EQ(all_gather_text(group, "alone", "texts"), std::vector<std::string>{"alone"});
}

TEST(ProcessGroup, disjoint_subgroups_are_made_by_one_call) {
  spawn_ranks(4, [](const auto& group) {
    const bool low = group->rank() < 2;
    const auto pair = group->subgroup(low ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    const auto odd = group->rank() % 2;
    const auto across = group->subgroup({odd, odd + 2});
    TORCH_CHECK(pair->size() == 2 && pair->rank() == group->rank() % 2);
    TORCH_CHECK(pair->global_rank(0) == (low ? 0 : 2));
    TORCH_CHECK(sum_of_ranks(pair) == (low ? 1 : 5));
    TORCH_CHECK(sum_of_ranks(across) == 2 * odd + 2);
    TORCH_CHECK(sum_of_ranks(group) == 6);
  });
}

TEST(ProcessGroup, subgroups_have_subgroups) {
  spawn_ranks(4, [](const auto& group) {
    const auto without_first =
        group->rank() == 0 ? group->subgroup({0}) : group->subgroup({1, 2, 3});
    if (group->rank() == 0) return;
    const auto own = without_first->rank();
    const auto last = own == 0 ? without_first->subgroup({0}) : without_first->subgroup({1, 2});
    TORCH_CHECK(sum_of_ranks(last) == (own == 0 ? 1 : 5));
    TORCH_CHECK(last->global_rank(0) == (own == 0 ? 1 : 2));
  });
}

// The others know by then where each of them waits.
TEST(ProcessGroup, ranks_of_several_subgroups_wait_for_one_that_is_late) {
  spawn_ranks(3, [](const auto& group) {
    if (group->rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(6));
    TORCH_CHECK(group->subgroup({group->rank()})->size() == 1);
  });
}

TEST(ProcessGroup, wrong_ranks_of_subgroups_are_named_on_every_rank) {
  const auto error = [](const std::vector<int>& of_rank_1) {
    return error_of([&] {
      spawn_ranks(3, [&](const auto& group) {
        group->subgroup(group->rank() == 1 ? of_rank_1 : std::vector<int>{0, 1, 2});
      });
    });
  };
  EXPECT_THAT(error({0, 1, 3}), HasSubstr("failed on rank 1: expected ranks below 3, but got 3"));
  EXPECT_THAT(error({1, 0}), HasSubstr("failed on rank 1: expected ascending ranks, but got 1,0"));
  EXPECT_THAT(
      error({0, 2}),
      HasSubstr("failed on rank 1: expected this rank, 1, among the ranks of the group, 0,2"));
  const std::string found = error({0, 1});
  EXPECT_THAT(found, HasSubstr("rank 0 asked for a subgroup of ranks 0,1,2, but rank 1 of 0,1"));
  EXPECT_THAT(found, HasSubstr("rank 1 asked for a subgroup of ranks 0,1, but rank 0 of 0,1,2"));
  EXPECT_THAT(found, HasSubstr("rank 2 asked for a subgroup of ranks 0,1,2, but rank 1 of 0,1"));
}

// Runs code that makes its own group, as two ranks.
void run_two(const std::function<void(const ProcessGroupOptions& options)>& body) {
  ProcessGroupOptions options;
  options.world_size = 2;
  options.store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    auto own = options;
    own.rank = rank;
    EXPECT_NO_THROW(body(own));
  };
  const std::jthread other([&] { run(1); });
  run(0);
}

TEST(ProcessGroup, groups_follow_one_another_at_one_store) {
  run_two([](const auto& options) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(sum_of_ranks(init_process_group(options)), 1);
  });
}

TEST(ProcessGroup, a_subgroup_outlives_the_group_it_came_from) {
  run_two([](const auto& options) {
    const auto group = init_process_group(options)->subgroup({0, 1});
    EXPECT_EQ(sum_of_ranks(group), 1);
  });
}

TEST(ProcessGroup, ranks_that_do_not_join_are_named) {
  ProcessGroupOptions options;
  options.rank = 1;
  options.world_size = 4;
  options.timeout = std::chrono::milliseconds(300);
  options.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "ranks 0, 2, 3 of 4 did not join within 300 ms");
  options.rank = 0;
  options.world_size = 100;
  options.store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more of 100 did not join within 300 ms");
}

// Returns the errors of two ranks that are started with separate options.
std::vector<std::string> errors_of_two(ProcessGroupOptions first, ProcessGroupOptions second) {
  first.store = second.store = c10::make_intrusive<c10d::HashStore>();
  first.timeout = second.timeout = std::chrono::seconds(10);
  std::vector<std::string> errors(2);
  {
    const std::jthread other([&] { errors[1] = error_of([&] { init_process_group(second); }); });
    errors[0] = error_of([&] { init_process_group(first); });
  }
  return errors;
}

TEST(ProcessGroup, other_world_sizes_and_taken_ranks_are_named) {
  ProcessGroupOptions first;
  first.rank = 0;
  first.world_size = 2;
  auto second = first;
  second.rank = 1;
  second.world_size = 3;
  for (const auto& error : errors_of_two(first, second)) {
    EXPECT_THAT(error, HasSubstr("was started with a world size of "));
    EXPECT_THAT(error, HasSubstr("rank 0 on "));
    EXPECT_THAT(error, HasSubstr("rank 1 on "));
  }
}

TEST(ProcessGroup, ranks_of_other_types_of_devices_are_named) {
  ProcessGroupOptions first;
  first.backend = "gloo";
  first.rank = 0;
  first.world_size = 2;
  auto second = first;
  second.rank = 1;
  second.device_id = c10::kCUDA;
  for (const auto& error : errors_of_two(first, second)) {
    EXPECT_THAT(error, HasSubstr("was started for devices of type "));
    EXPECT_THAT(error, HasSubstr("give every rank a ProcessGroupOptions::device_id of one type"));
  }
}

TEST(ProcessGroup, wrong_options_are_refused) {
  ProcessGroupOptions options;
  options.backend = "carrier pigeons";
  const std::string backends = test::on_sim() ? "gloo, sim" : "gloo";
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected one of the backends " + backends + ", but got 'carrier pigeons'");
  options.backend = "nccl";
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "backend nccl is not part of this program (it has: " + backends + "): link fsdp::cuda");
  options.backend = "gloo";
  options.rank = 0;
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected both rank and world_size in the options, or neither");
  options.world_size = 2;
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected master_addr and master_port beside rank and world_size");
  options.rank = 2;
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected a rank below the world size, but got rank 2 of 2");
  options.rank = 0;
  options.timeout = std::chrono::seconds(0);
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected a timeout above zero, but got 0 ms");
}

TEST(SpawnRanks, all_failing_ranks_are_reported_and_causes_come_first) {
  const std::string error = error_of([] {
    spawn_ranks(4, [](const auto& group) {
      barrier(group, "start");
      if (group->rank() == 3) throw std::runtime_error("out of ideas");
      if (group->rank() == 2) throw 7;
      barrier(group, "end");
    });
  });
  EXPECT_THAT(error, StartsWith("rank 2: an exception of unknown type\nrank 3: out of ideas\n"
                                "rank 0: end: "));
  EXPECT_THAT(error, HasSubstr("rank 2 failed: an exception of unknown type"));
  EXPECT_THAT(error, HasSubstr("\nrank 1: end: "));
}

TEST(RankMonitor, a_rank_that_failed_stops_the_others_long_before_the_timeout) {
  if (test::on_sim()) GTEST_SKIP() << "on a device wait() holds up a stream, and not the host";
  const std::string error = error_of([] {
    spawn_ranks(3, [](const auto& group) {
      if (group->rank() == 1) {
        monitor_of(*group).failed("no memory left");
        // Its process continues, so no connection breaks.
        while (!monitor_of(*group).any_failed()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return;
      }
      try {
        const at::TensorOptions here(test::device_of_rank(group->rank()));
        all_gather(group, at::empty({3}, here), at::ones({1}, here), "all-gather of head").wait();
      } catch (const PeerError& lost) {
        monitor_of(*group).failed(message_of(lost));
        throw;
      }
    });
  });
  const std::string expected =
      "all-gather of head: another rank failed; rank 1 failed: no memory left";
  EXPECT_EQ(error, "rank 0: " + expected + "\nrank 2: " + expected);
}

TEST(RankMonitor, a_rank_that_recovered_does_not_stop_the_others) {
  spawn_ranks(2, [](const auto& group) {
    if (group->rank() == 1) {
      monitor_of(*group).failed("a batch could not be read");
      monitor_of(*group).recovered();
    }
    all_gather_text(group, "", "both are here");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    TORCH_CHECK(!monitor_of(*group).any_failed());
    barrier(group, "barrier");
  });
}

TEST(RankMonitor, a_rank_that_ended_is_named) {
  const std::string error = error_of([] {
    spawn_ranks(3, [](const auto& group) {
      barrier(group, "start");
      if (group->rank() != 2) all_gather_text(group, "", "save");
    });
  });
  // The first to find it out fails, and the other may see that failure before it finds out itself.
  EXPECT_THAT(error, HasSubstr("rank 2 did not arrive: its process group has ended; "));
  for (const std::string rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(error, ContainsRegex(rank + ": save: rank 2 did not arrive: (its process group has "
                                            "ended|another rank failed); .*rank 2 has ended"));
  }
}

}  // namespace
}  // namespace fsdp
