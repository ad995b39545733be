// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/agree.h"

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "tests/support/spawn_ranks.h"

namespace fsdp {
using namespace internal;
namespace {

using test::spawn_ranks;

// Returns the message of every rank of `world`.
template <typename F>
std::vector<std::string> errors_of(int world, const F& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(world), "no error");
  spawn_ranks(world, [&](const auto& group) {
    try {
      f(group);
    } catch (const c10::Error& error) {
      errors[static_cast<std::size_t>(group->rank())] = message_of(error);
    }
    // The group is usable after a failure, and in step.
    barrier(group, "afterwards");
  });
  return errors;
}

TEST(Agree, is_silent_where_no_rank_failed) {
  for (const int world : {1, 2, 3, 4}) {
    spawn_ranks(world, [](const auto& group) {
      int runs = 0;
      agree(group, "save", [&] { ++runs; });
      TORCH_CHECK(runs == 1);
    });
  }
}

TEST(Agree, tells_every_rank_what_each_returned) {
  for (const int world : {1, 2, 3, 4}) {
    spawn_ranks(world, [&](const auto& group) {
      const auto told = agree_and_tell(group, "save", [&] {
        return group->rank() == 1 ? std::string("!.\n") : std::to_string(group->rank());
      });
      TORCH_CHECK(told.size() == static_cast<std::size_t>(world));
      for (int r = 0; r < world; ++r) {
        TORCH_CHECK(told[static_cast<std::size_t>(r)] == (r == 1 ? "!.\n" : std::to_string(r)));
      }
    });
  }
}

TEST(Agree, every_rank_throws_what_each_failing_rank_said) {
  for (const int world : {1, 2, 3, 4}) {
    const auto errors = errors_of(world, [&](const auto& group) {
      agree(group, "save step-400",
            [&] { TORCH_CHECK(group->rank() != world - 1, "disk: No space left on device"); });
    });
    EXPECT_THAT(errors,
                ::testing::Each("save step-400 failed on rank " + std::to_string(world - 1) +
                                ": disk: No space left on device"));
  }
}

TEST(Agree, several_failures_are_told_by_rank_whatever_was_thrown) {
  const auto errors = errors_of(4, [](const auto& group) {
    agree(group, "load", [&] {
      if (group->rank() == 1) throw std::runtime_error("x.pt: not there");
      if (group->rank() == 2) throw 5;
      if (group->rank() == 3) throw std::runtime_error("");
    });
  });
  EXPECT_THAT(errors, ::testing::Each("load failed on rank 1: x.pt: not there; on rank 2: an "
                                      "exception of unknown type; on rank 3: "));
}

TEST(Agree, memory_that_ran_out_is_told_in_words) {
  const auto errors =
      errors_of(2, [](const auto& group) { agree(group, "save", [] { throw std::bad_alloc(); }); });
  EXPECT_THAT(errors, ::testing::Each("save failed on rank 0, rank 1: out of memory"));
}

TEST(Agree, ranks_of_subgroups_are_named_as_in_the_whole) {
  const auto errors = errors_of(3, [](const auto& group) {
    const auto sub =
        group->subgroup(group->rank() == 0 ? std::vector<int>{0} : std::vector<int>{1, 2});
    agree(sub, "save", [&] { TORCH_CHECK(sub->rank() == 0, "no"); });
  });
  EXPECT_THAT(errors, ::testing::ElementsAre("no error", "save failed on rank 2: no",
                                             "save failed on rank 2: no"));
}

TEST(Agree, leaves_nothing_behind_at_the_store) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::int64_t> counts;
  const auto run = [&](int rank) {
    ProcessGroupOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.store = store;
    const auto group = init_process_group(options);
    for (int i = 0; i < 20; ++i) {
      agree(group, "step", [] {});
      barrier(group, "step");
      if (rank == 0) counts.push_back(store->getNumKeys());
      barrier(group, "counted");
    }
  };
  {
    const std::jthread other([&] { run(1); });
    run(0);
  }
  EXPECT_EQ(counts.front(), counts.back());
}

TEST(RequireSame, is_silent_where_all_say_the_same) {
  for (const int world : {1, 2, 3, 4}) {
    spawn_ranks(world, [](const auto& group) {
      require_same(group, "model", {});
      require_same(group, "model", {"a 3 4", "b 5"});
    });
  }
}

TEST(RequireSame, names_the_lowest_rank_and_the_first_line_that_differ) {
  const auto errors = errors_of(4, [](const auto& group) {
    std::vector<std::string> lines{"a [3, 4] float32", "b [5] float32", "c"};
    if (group->rank() >= 2) lines[1] = "b [6] float32";
    if (group->rank() == 3) lines[0] = "z";
    require_same(group, "the models of the ranks", lines);
  });
  EXPECT_THAT(errors,
              ::testing::Each("the models of the ranks: rank 2 differs from rank 0 in line 2: it "
                              "has 'b [6] float32' instead of 'b [5] float32'"));
}

TEST(RequireSame, tells_of_lines_that_are_missing_or_too_many) {
  for (const bool more : {false, true}) {
    const auto errors = errors_of(2, [&](const auto& group) {
      std::vector<std::string> lines{"a"};
      if ((group->rank() == 1) == more) lines.emplace_back("b");
      require_same(group, "model", lines);
    });
    EXPECT_THAT(errors,
                ::testing::Each(more ? "model: rank 1 differs from rank 0 in line 2: it has "
                                       "'b' instead of nothing"
                                     : "model: rank 1 differs from rank 0 in line 2: it has "
                                       "nothing instead of 'b'"));
  }
}

TEST(RequireSame, cuts_long_lines_at_200_characters) {
  const auto errors = errors_of(2, [&](const auto& group) {
    require_same(group, "m", {std::string(300, group->rank() == 0 ? 'a' : 'b')});
  });
  EXPECT_THAT(errors, ::testing::Each("m: rank 1 differs from rank 0 in line 1: it has '" +
                                      std::string(200, 'b') + "'... instead of '" +
                                      std::string(200, 'a') + "'..."));
}

}  // namespace
}  // namespace fsdp
