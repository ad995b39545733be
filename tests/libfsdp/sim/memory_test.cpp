// SPDX-License-Identifier: Apache-2.0
// Memory, events and waits of the host in steps on simulated devices that are far behind.
#include <algorithm>
#include <string>

#include "tests/libfsdp/sim/scene.h"

namespace fsdp::test {
namespace {

constexpr int kWarmSteps = 2;

struct Sizes {
  std::int64_t root = 0;
  std::int64_t largest = 0;  // of the other units
};

// The memory of gathered units.
Sizes sizes_of(const ShardedGpt& sharded) {
  Sizes result;
  for (const auto& unit : internal::engine_of(sharded).units()) {
    const std::int64_t bytes =
        unit->gather_bytes * internal::engine_of(sharded).shard_group()->size();
    std::int64_t& size = unit->parent == nullptr ? result.root : result.largest;
    size = std::max(size, bytes);
  }
  return result;
}

class SimMemoryOfSteps : public testing::Test {
 protected:
  // Trains without a wait of the host for `steps` after a few, and looks at the counters of rank 0.
  void expect(int steps, const std::function<void(const sim::Counters&, const Sizes&)>& look) {
    scene_.layers = 8;
    run(scene_, [&](ShardedGpt& sharded, const Group& group) {
      const int rank = group->rank();
      torch::optim::SGD optimizer(sharded.parameters(), 0.05);
      std::vector<Tensor> tokens;
      for (int i = 0; i < kWarmSteps + steps; ++i) tokens.push_back(device_tokens(rank, i));
      for (int i = 0; i < kWarmSteps + steps; ++i) {
        if (i == kWarmSteps) {
          sim::synchronize(rank);
          sim::reset_counters(rank);
        }
        next_token_loss(sharded.forward(tokens[static_cast<std::size_t>(i)]),
                        tokens[static_cast<std::size_t>(i)])
            .backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      if (rank == 0) look(sim::counters(rank), sizes_of(sharded));
    });
  }

  // Gathered units beside the root's that were held at once, with those of a copy out of a gather.
  static double units_held(const sim::Counters& counters, const Sizes& sizes) {
    return static_cast<double>(counters.memory_of.at("unshard").peak_held_bytes - sizes.root) /
           static_cast<double>(sizes.largest);
  }

  Scene scene_;
};

// FSDP1's bound: the unit in use, one that is gathered ahead, and one whose last use is queued;
// and the blocks of a gather, from which a unit is copied.
constexpr double kMostHeld = 4.2;

TEST_F(SimMemoryOfSteps, gathers_ahead_of_backwards_are_limited) {
  expect(6, [](const sim::Counters& counters, const Sizes& sizes) {
    EXPECT_LE(units_held(counters, sizes), kMostHeld);
  });
}

TEST_F(SimMemoryOfSteps, gathers_ahead_of_forwards_are_limited) {
  scene_.options.forward_prefetch = true;
  expect(6, [](const sim::Counters& counters, const Sizes& sizes) {
    EXPECT_LE(units_held(counters, sizes), kMostHeld);
  });
}

TEST_F(SimMemoryOfSteps, gathers_that_nobody_asked_for_ahead_are_limited_too) {
  scene_.options.backward_prefetch = BackwardPrefetch::kNone;
  expect(6, [](const sim::Counters& counters, const Sizes& sizes) {
    EXPECT_LE(units_held(counters, sizes), kMostHeld);
  });
}

// Fails where the option is ignored: see tests/left_out/options.py.
TEST_F(SimMemoryOfSteps, limit_all_gathers) {
  scene_.options.limit_all_gathers = false;
  expect(6, [](const sim::Counters& counters, const Sizes& sizes) {
    EXPECT_GT(units_held(counters, sizes), kMostHeld);
  });
}

TEST_F(SimMemoryOfSteps, no_event_is_left_by_a_step) {
  std::int64_t after_6 = 0;
  expect(6, [&](const sim::Counters& counters, const Sizes&) { after_6 = counters.events_alive; });
  expect(12, [&](const sim::Counters& counters, const Sizes&) {
    EXPECT_LE(counters.events_alive, after_6);
  });
}

TEST_F(SimMemoryOfSteps, evaluations_leave_no_event) {
  run(scene_, [](ShardedGpt& sharded, const Group& group) {
    const torch::NoGradGuard no_grad;
    const Tensor tokens = device_tokens(group->rank(), 0);
    for (int i = 0; i < 8; ++i) sharded.forward(tokens);
    const auto before = sim::counters(group->rank()).events_alive;
    for (int i = 0; i < 8; ++i) sharded.forward(tokens);
    EXPECT_LE(sim::counters(group->rank()).events_alive, before);
  });
}

TEST_F(SimMemoryOfSteps, the_host_waits_for_nothing) {
  for (const bool limited : {true, false}) {
    scene_.options.limit_all_gathers = limited;
    expect(4, [](const sim::Counters& counters, const Sizes&) {
      EXPECT_EQ(counters.host_waits(), 0) << counters.wait_places.begin()->first;
    });
  }
}

// Also in whichever order units are gathered.
TEST_F(SimMemoryOfSteps, the_engine_allocates_nothing_after_its_first_steps) {
  for (const bool forward : {false, true}) {
    for (const auto backward : {BackwardPrefetch::kBackwardPre, BackwardPrefetch::kBackwardPost,
                                BackwardPrefetch::kNone}) {
      scene_.options.forward_prefetch = forward;
      scene_.options.backward_prefetch = backward;
      expect(4, [](const sim::Counters& counters, const Sizes&) {
        for (const auto& [stream, memory] : counters.memory_of) {
          const bool is_lane = stream == "unshard" || stream == "reduce";
          EXPECT_TRUE(!is_lane || memory.allocations == 0) << stream << ' ' << memory.allocations;
        }
        EXPECT_EQ(counters.fresh_blocks, 0);
        EXPECT_EQ(counters.recorded_on_streams, 0);
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::test
