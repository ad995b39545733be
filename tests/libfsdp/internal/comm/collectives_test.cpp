// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/collectives.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/internal/comm/errors.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
using namespace internal;
namespace {

using test::spawn_ranks;
using Group = std::shared_ptr<ProcessGroup>;

const std::vector<int> kWorlds{1, 2, 3, 4};
const std::vector<std::int64_t> kSizes{0, 1, 7, 1000};
const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                          at::kLong,  at::kInt,    at::kByte,     at::kBool};

// Returns the input of rank `rank`: small whole numbers, so that sums are exact in every dtype.
at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kLong) * (rank + 1) % 7).to(dtype);
}

// Returns options of tensors on the device of this rank.
at::TensorOptions on_device(const Group& group, at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions().dtype(dtype).device(test::device_of_rank(group->rank()));
}

at::Tensor own_input(const Group& group, std::int64_t numel, at::ScalarType dtype) {
  return input_of(group->rank(), numel, dtype).to(test::device_of_rank(group->rank()));
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& where) {
  TORCH_CHECK(found.scalar_type() == expected.scalar_type() && at::equal(found.cpu(), expected),
              where, ": expected ", expected, ", but got ", found.cpu());
}

template <typename F>
void for_each_case(const F& f) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [&](const auto& group) {
      for (const auto numel : kSizes) {
        for (const auto dtype : kDtypes) {
          f(group, numel, dtype, c10::str(world, " ranks, ", numel, " ", dtype));
        }
      }
    });
  }
}

TEST(Collectives, all_gather_holds_the_ranks_inputs_in_order) {
  for_each_case(
      [](const auto& group, std::int64_t numel, at::ScalarType dtype, const std::string& where) {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < group->size(); ++r) parts.push_back(input_of(r, numel, dtype));
        auto output = at::empty({group->size() * numel}, on_device(group, dtype));
        all_gather(group, output, own_input(group, numel, dtype), "all-gather").wait();
        expect_equal(output, at::cat(parts), where);
      });
}

TEST(Collectives, all_to_all_transposes_blocks_and_ranks) {
  for_each_case([](const auto& group, std::int64_t numel, at::ScalarType dtype,
                   const std::string& where) {
    const auto world = group->size();
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world; ++r) {
      parts.push_back(input_of(r, world * numel, dtype).narrow(0, group->rank() * numel, numel));
    }
    auto output = at::empty({world * numel}, on_device(group, dtype));
    all_to_all(group, output, own_input(group, world * numel, dtype), "all-to-all").wait();
    expect_equal(output, at::cat(parts), where);
  });
}

TEST(Collectives, reduce_scatter_sums_each_ranks_block) {
  for_each_case([](const auto& group, std::int64_t numel, at::ScalarType dtype,
                   const std::string& where) {
    if (dtype == at::kBool) return;
    const auto world = group->size();
    auto expected = at::zeros({numel}, dtype);
    for (int r = 0; r < world; ++r) {
      expected += input_of(r, world * numel, dtype).narrow(0, group->rank() * numel, numel);
    }
    auto output = at::empty({numel}, on_device(group, dtype));
    reduce_scatter(group, output, own_input(group, world * numel, dtype), "reduce-scatter").wait();
    expect_equal(output, expected, where);
  });
}

TEST(Collectives, all_reduce_sums_and_finds_extremes) {
  for_each_case(
      [](const auto& group, std::int64_t numel, at::ScalarType dtype, const std::string& where) {
        if (dtype == at::kBool) return;
        std::vector<at::Tensor> parts;
        for (int r = 0; r < group->size(); ++r) parts.push_back(input_of(r, numel, dtype));
        const auto all = at::stack(parts);
        const auto own = own_input(group, numel, dtype);
        auto sum = own.clone();
        auto max = own.clone();
        auto min = own.clone();
        auto pending_sum = all_reduce(group, sum, ReduceOp::kSum, "sum");
        auto pending_max = all_reduce(group, max, ReduceOp::kMax, "max");
        auto pending_min = all_reduce(group, min, ReduceOp::kMin, "min");
        pending_min.wait();
        pending_max.wait();
        pending_sum.wait();
        expect_equal(sum, all.sum(0, false, dtype), where);
        expect_equal(max, all.amax(0), where);
        expect_equal(min, all.amin(0), where);
      });
}

TEST(Collectives, extremes_keep_what_is_not_a_number) {
  spawn_ranks(3, [](const auto& group) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      auto value =
          at::full({2}, group->rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 4.0,
                   on_device(group, dtype));
      all_reduce(group, value, ReduceOp::kMax, "norm").wait();
      TORCH_CHECK(value.isnan().all().template item<bool>(), value);
    }
  });
}

TEST(Collectives, sums_of_bfloat16_are_rounded_once) {
  // 256 + 1 is 256 in bfloat16, so adding one by one would stay there; the sum is 260.
  spawn_ranks(4, [](const auto& group) {
    auto value = at::full({1}, group->rank() == 0 ? 256.0 : 1.0, on_device(group, at::kBFloat16));
    all_reduce(group, value, ReduceOp::kSum, "sum").wait();
    TORCH_CHECK(value.template item<float>() == 260.0F, value);
  });
}

TEST(Collectives, broadcast_gives_every_rank_the_roots_values) {
  for_each_case(
      [](const auto& group, std::int64_t numel, at::ScalarType dtype, const std::string& where) {
        for (int root = 0; root < group->size(); ++root) {
          auto tensor = own_input(group, numel, dtype);
          broadcast(group, tensor, root, "broadcast").wait();
          expect_equal(tensor, input_of(root, numel, dtype), where);
        }
      });
}

TEST(Collectives, broadcast_names_a_root_that_is_no_rank) {
  spawn_ranks(2, [](const auto& group) {
    try {
      broadcast(group, at::ones({1}), 2, "broadcast of seeds");
    } catch (const c10::Error& error) {
      TORCH_CHECK(std::string(error.what_without_backtrace()) ==
                  "broadcast of seeds: expected a rank below 2, but got 2");
      return;
    }
    TORCH_CHECK(false, "expected an error");
  });
}

TEST(Collectives, sizes_that_do_not_fit_are_named) {
  spawn_ranks(2, [](const auto& group) {
    const auto message_of_call = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const c10::Error& error) {
        return error.what_without_backtrace();
      }
      return "";
    };
    const auto expect = [](const std::string& found, const std::string& expected) {
      TORCH_CHECK(found == expected, found);
    };
    expect(message_of_call([&] { all_gather(group, at::ones({3}), at::ones({2}), "gather"); }),
           "gather: expected an output of one input per rank, but got an output of 3 Float and an "
           "input of 2 Float");
    expect(message_of_call([&] { all_to_all(group, at::ones({3}), at::ones({3}), "blocks"); }),
           "blocks: expected an output and an input of one block per rank, but got an output of 3 "
           "Float and an input of 3 Float");
    expect(message_of_call([&] {
             reduce_scatter(group, at::ones({1}), at::ones({2}, at::kDouble), "gradients");
           }),
           "gradients: expected an input of one output per rank, but got an output of 1 Float and "
           "an input of 2 Double");
  });
}

TEST(Collectives, many_in_flight_end_in_any_order) {
  spawn_ranks(3, [](const auto& group) {
    constexpr int kCount = 40;
    std::vector<at::Tensor> outputs;
    std::vector<Pending> pending;
    for (int i = 0; i < kCount; ++i) {
      outputs.push_back(at::empty({3 * (i + 1)}, on_device(group)));
      pending.push_back(all_gather(
          group, outputs.back(),
          at::full({i + 1}, static_cast<float>(group->rank() * 100 + i), on_device(group)),
          "all-gather"));
    }
    for (int i = kCount - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      TORCH_CHECK(pending[at]);
      pending[at].wait();
      TORCH_CHECK(!pending[at]);
      for (int r = 0; r < 3; ++r) {
        const auto part = outputs[at].narrow(0, r * (i + 1), i + 1);
        TORCH_CHECK((part == static_cast<float>(r * 100 + i)).all().template item<bool>(), part);
      }
    }
  });
}

TEST(Collectives, one_that_nobody_waits_for_goes_on) {
  spawn_ranks(3, [](const auto& group) {
    all_gather(group, at::empty({3 * 100'000}, on_device(group)),
               at::ones({100'000}, on_device(group)), "dropped");
    auto value = at::ones({1}, on_device(group));
    all_reduce(group, value, ReduceOp::kSum, "sum").wait();
    TORCH_CHECK(value.template item<float>() == 3.0F, value);
  });
}

TEST(Collectives, inference_mode_of_the_caller_does_not_reach_them) {
  for (const int world : {1, 2}) {
    spawn_ranks(world, [](const auto& group) {
      auto output_N = at::empty({4}, on_device(group));
      const auto input_WN = at::ones({4 * group->size()}, on_device(group));
      {
        const c10::InferenceMode inference;
        reduce_scatter(group, output_N, input_WN, "reduce-scatter").wait();
      }
      TORCH_CHECK(!output_N.is_inference());
      output_N.add_(1);
      TORCH_CHECK(output_N.sum().template item<float>() ==
                  4.0F * static_cast<float>(group->size() + 1));
    });
  }
}

TEST(Collectives, leaves_of_autograd_can_be_written) {
  spawn_ranks(2, [](const auto& group) {
    auto parameter =
        at::full({3}, static_cast<float>(group->rank() + 5), on_device(group)).requires_grad_();
    broadcast(group, parameter, 1, "parameters").wait();
    TORCH_CHECK(parameter.requires_grad() && parameter.grad_fn() == nullptr);
    TORCH_CHECK(parameter.sum().template item<float>() == 18.0F, parameter);
  });
}

// ---- blocks, in this process or in others

// Runs `f` on ranks that read each other's memory, and on ranks that send it.
template <typename F>
void with_and_without_direct_copies(const F& f) {
  if (test::on_sim()) GTEST_SKIP() << "only ranks on the CPU read each other's memory";
  for (const bool direct : {true, false}) {
    for (const int world : {2, 3, 4}) {
      ProcessGroupOptions options;
      options.world_size = world;
      options.timeout = std::chrono::seconds(20);
      options.direct_copies = direct;
      spawn_ranks(options, [&](const auto& group) {
        TORCH_CHECK(has_direct_copies(*group) == direct, "expected direct copies: ", direct);
        f(group);
      });
    }
  }
}

at::Tensor buffer_for(const Group& group, const at::Tensor& block) {
  return has_direct_copies(*group) ? at::Tensor()
                                   : at::empty({group->size() * block.numel()}, block.options());
}

TEST(Collectives, blocks_of_all_ranks_are_read_in_parts) {
  with_and_without_direct_copies([](const Group& group) {
    for (const std::int64_t numel : {1, 7, 100'000}) {
      const at::Tensor input = at::arange(numel, at::kFloat) + 1000 * group->rank();
      const at::Tensor buffer = buffer_for(group, input);
      Pending pending = gather_blocks(group, buffer, input, "gather");
      const std::int64_t half = numel / 2;
      at::Tensor found = at::zeros({group->size(), numel}, at::kFloat);
      pending.read(buffer, [&](const Blocks& blocks) {
        for (int rank = 0; rank < group->size(); ++rank) {
          auto* const row = reinterpret_cast<char*>(found[rank].mutable_data_ptr<float>());
          blocks.copy(rank, {{half * 4, (numel - half) * 4, row + half * 4}, {0, half * 4, row}});
          std::vector<char> scratch(4);
          float last = 0;
          std::memcpy(&last, blocks.view(rank, (numel - 1) * 4, 4, scratch.data()), 4);
          TORCH_CHECK(last == static_cast<float>(numel - 1 + 1000 * rank), last);
        }
      });
      for (int rank = 0; rank < group->size(); ++rank)
        expect_equal(found[rank], at::arange(numel, at::kFloat) + 1000 * rank, "gathered");
      input.fill_(-1);  // nobody reads it any more
    }
  });
}

TEST(Collectives, blocks_that_ranks_exchange_are_those_for_this_rank) {
  with_and_without_direct_copies([](const Group& group) {
    constexpr std::int64_t kNumel = 1000;
    const at::Tensor input =
        at::arange(group->size() * kNumel, at::kFloat) + 100'000 * group->rank();
    const at::Tensor buffer = has_direct_copies(*group) ? at::Tensor() : at::empty_like(input);
    at::Tensor found = at::zeros({group->size(), kNumel}, at::kFloat);
    exchange_blocks(group, buffer, input, "exchange").read(buffer, [&](const Blocks& blocks) {
      for (int rank = 0; rank < group->size(); ++rank)
        blocks.copy(rank, {{0, kNumel * 4,
                            reinterpret_cast<char*>(found[rank].mutable_data_ptr<float>())}});
    });
    for (int rank = 0; rank < group->size(); ++rank)
      expect_equal(found[rank],
                   at::arange(kNumel, at::kFloat) + kNumel * group->rank() + 100'000 * rank,
                   "exchanged");
  });
}

TEST(Collectives, blocks_may_be_waited_for_without_reading_or_not_at_all) {
  with_and_without_direct_copies([](const Group& group) {
    const at::Tensor input = at::ones({1000});
    for (int i = 0; i < 20; ++i) {
      const at::Tensor buffer = buffer_for(group, input);
      Pending read = gather_blocks(group, buffer, input, "read");
      Pending waited = gather_blocks(group, buffer_for(group, input), input, "waited for");
      { const Pending dropped = gather_blocks(group, buffer_for(group, input), input, "dropped"); }
      waited.wait();
      TORCH_CHECK(!waited);
      int reads = 0;
      read.read(buffer, [&](const Blocks&) { ++reads; });
      TORCH_CHECK(reads == 1);
    }
  });
}

TEST(Collectives, what_the_reader_throws_comes_to_its_caller_and_holds_up_nobody) {
  with_and_without_direct_copies([](const Group& group) {
    const at::Tensor input = at::ones({1000});
    const at::Tensor buffer = buffer_for(group, input);
    Pending pending = gather_blocks(group, buffer, input, "gather");
    std::string message;
    try {
      pending.read(buffer, [&](const Blocks& blocks) {
        if (group->rank() == 0) throw std::runtime_error("of rank 0");
        // Rank 0 has long thrown, and still its block may not change.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        at::Tensor found = at::zeros({1000}, at::kFloat);
        blocks.copy(0, {{0, 4000, reinterpret_cast<char*>(found.mutable_data_ptr<float>())}});
        expect_equal(found, at::ones({1000}), "rank 0's block");
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    input.zero_();
    TORCH_CHECK(message == (group->rank() == 0 ? "of rank 0" : ""), message);
    barrier(group, "barrier");
  });
}

TEST(Collectives, one_rank_that_wants_no_direct_copies_is_enough) {
  if (test::on_sim()) GTEST_SKIP() << "only ranks on the CPU read each other's memory";
  std::vector<std::thread> threads;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> direct = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options;
      options.rank = rank;
      options.world_size = 3;
      options.store = store;
      options.direct_copies = rank != 1;
      const auto group = init_process_group(options);
      direct += has_direct_copies(*group) ? 1 : 0;
      barrier(group, "barrier");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(direct, 0);
}

TEST(Collectives, blocks_of_other_sizes_are_an_error_on_every_rank) {
  if (test::on_sim()) GTEST_SKIP() << "only ranks on the CPU read each other's memory";
  std::atomic<int> refused = 0;
  spawn_ranks(2, [&](const auto& group) {
    const at::Tensor input = at::ones({group->rank() == 0 ? 10 : 11});
    try {
      gather_blocks(group, {}, input, "gather").read({}, [](const Blocks&) {});
    } catch (const PeerError& error) {
      if (std::string(error.what()).find("a block of another size") != std::string::npos) ++refused;
    }
    // Until then, memory that the other one offers has to be there.
    all_gather_text(group, "", "the end");
  });
  EXPECT_EQ(refused, 2);
}

TEST(Collectives, observers_of_operators_see_nothing_of_other_threads) {
  static std::atomic<int> seen;
  seen = 0;
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&)
                                                           -> std::unique_ptr<at::ObserverContext> {
                              ++seen;
                              return nullptr;
                            }).scopes({at::RecordScope::FUNCTION}));
  const int before = seen;
  spawn_ranks(2, [](const auto& group) {
    const at::DisableRecordFunctionGuard this_thread_is_silent;
    auto output = at::empty({200}, on_device(group));
    all_gather(group, output, at::ones({100}, on_device(group)), "all-gather").wait();
    all_to_all(group, output, at::ones({200}, on_device(group)), "all-to-all").wait();
    all_reduce(group, output, ReduceOp::kSum, "sum").wait();
    barrier(group, "barrier");
  });
  at::removeCallback(handle);
  EXPECT_EQ(seen, before);
}

TEST(Collectives, barrier_holds_ranks_until_the_last_has_come) {
  for (const int world : kWorlds) {
    std::atomic<int> arrived = 0;
    spawn_ranks(world, [&](const auto& group) {
      for (int round = 1; round <= 5; ++round) {
        ++arrived;
        barrier(group, "barrier");
        TORCH_CHECK(arrived >= round * world, arrived.load());
        barrier(group, "barrier");
      }
    });
  }
}

TEST(Collectives, texts_come_by_rank_whatever_they_hold) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [&](const auto& group) {
      for (int round = 0; round < 3; ++round) {
        const auto text_of = [&](int rank) {
          return rank == 0 ? std::string()
                           : std::string(static_cast<std::size_t>(rank * 7), '\0') +
                                 std::to_string(round);
        };
        const auto texts = all_gather_text(group, text_of(group->rank()), "texts");
        TORCH_CHECK(static_cast<int>(texts.size()) == world);
        for (int r = 0; r < world; ++r)
          TORCH_CHECK(texts[static_cast<std::size_t>(r)] == text_of(r));
      }
    });
  }
}

TEST(Collectives, a_late_rank_is_named_at_the_timeout) {
  if (test::on_sim()) GTEST_SKIP() << "on a device wait() holds up a stream and sees no timeout";
  std::mutex mutex;
  std::vector<std::string> messages;
  const auto given_up = [&] {
    const std::lock_guard lock(mutex);
    return messages.size();
  };
  spawn_ranks(
      3,
      [&](const auto& group) {
        barrier(group, "start");
        if (group->rank() == 2) {
          // Alive, but never where the others are.
          while (given_up() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          return;
        }
        try {
          all_gather(group, at::empty({3}), at::ones({1}), "all-gather of blocks.1").wait();
        } catch (const c10::Error& error) {
          const std::lock_guard lock(mutex);
          messages.emplace_back(error.what_without_backtrace());
        }
      },
      std::chrono::seconds(2));
  EXPECT_THAT(messages,
              ::testing::Each("all-gather of blocks.1: not done within 2 s; rank 2 is at start, 1 "
                              "collective behind"));
}

}  // namespace
}  // namespace fsdp
