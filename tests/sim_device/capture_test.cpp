// SPDX-License-Identifier: Apache-2.0
// The rules of captures, each with the smallest program that breaks it.
#include "tests/support/sim_device/capture.h"

#include <functional>
#include <optional>
#include <utility>

#include "tests/sim_device/sim_test.h"

namespace fsdp::test::sim {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;

class SimCapture : public SimDevice {
 protected:
  using Body = std::function<void()>;

  // Captures what `body` does on the side stream.
  Graph captured(const Body& body) const {
    std::optional<Graph> result;
    on(side_, [&] {
      Capture capture(0);
      body();
      result.emplace(capture.end());
    });
    return std::move(*result);
  }
  // The same for a tensor that it makes.
  std::pair<Graph, Tensor> captured_result(const std::function<Tensor()>& body) const {
    Tensor made;
    Graph graph = captured([&] { made = body(); });
    return {std::move(graph), made};
  }
  void replay(const Graph& graph) const {
    on(side_, [&] { graph.replay(); });
  }

  // Returns a tensor of the side stream.
  Tensor side_values(std::vector<std::int64_t> shape) const {
    Tensor result;
    on(side_, [&] { result = values(std::move(shape)); });
    return result;
  }
  // Returns the numbers of a tensor of the side stream.
  std::vector<float> numbers(const Tensor& tensor) const {
    std::vector<float> result;
    on(side_, [&] {
      const Tensor found = tensor.cpu().contiguous();
      result.assign(found.const_data_ptr<float>(), found.const_data_ptr<float>() + found.numel());
    });
    return result;
  }
  static Tensor pinned(double value) {
    return torch::full({4}, value, torch::TensorOptions().pinned_memory(true));
  }
};

// A function of its own, so that it is in chains of calls.
Tensor __attribute__((noinline)) read_it(const Tensor& tensor) {
  return tensor + 1;
}

// ---- what a capture does, and what a replay

TEST_F(SimCapture, memory_is_after_a_capture_what_it_was_before) {
  Tensor x = side_values({4});
  const auto [graph, sum] = captured_result([&] { return x.mul_(3).add_(1) + x; });
  EXPECT_THAT(numbers(x), Each(2));
  on(side_, [&, made = sum] { EXPECT_TRUE(made.cpu().isnan().all().item<bool>()); });
}

TEST_F(SimCapture, a_replay_does_the_work_again_at_the_same_addresses) {
  Tensor x = side_values({4});
  const auto [graph, sum] = captured_result([&] { return x.mul_(3).add_(1) + x; });
  const void* const address = sum.const_data_ptr();
  replay(graph);
  EXPECT_THAT(numbers(x), Each(7));
  EXPECT_THAT(numbers(sum), Each(14));
  on(side_, [&] { x.fill_(1); });
  replay(graph);
  EXPECT_THAT(numbers(x), Each(4));
  EXPECT_THAT(numbers(sum), Each(8));
  EXPECT_EQ(sum.const_data_ptr(), address);
}

TEST_F(SimCapture, numbers_of_the_host_are_those_of_the_capture) {
  Tensor x = side_values({4});
  Tensor factor = torch::full({}, 3.0);
  const Graph graph = captured([&] { x.mul_(factor); });
  factor.fill_(100);
  replay(graph);
  EXPECT_THAT(numbers(x), Each(6));
}

// Kinds of calls that are done again in different ways.
struct Call {
  std::string name;
  std::function<Tensor(const Tensor& x, Tensor& kept)> body;
};

TEST_F(SimCapture, calls_of_each_kind_are_replayed) {
  const auto weight = [&](std::vector<std::int64_t> shape) {
    Tensor result;
    on(side_, [&] { result = torch::full(shape, 0.25, torch::TensorOptions().device(device_)); });
    return result;
  };
  const Tensor filter = weight({3, 2, 2, 2});
  const Tensor gates = weight({4, 16});
  const Tensor cell = weight({4, 4});
  const std::vector<Call> calls{
      {"new", [](const Tensor& x, Tensor&) { return x.exp(); }},
      {"in place", [](const Tensor& x, Tensor& kept) { return kept.add_(x).view({-1}); }},
      {"of a view",
       [](const Tensor& x, Tensor& kept) {
         return kept.t().narrow(0, 1, 2).copy_(x.t().narrow(0, 1, 2)) * 2;
       }},
      {"out", [](const Tensor& x, Tensor& kept) { return at::mul_out(kept, x, x) + 1; }},
      {"out without a size",
       [](const Tensor& x, Tensor&) {
         Tensor out = torch::empty({0}, x.options());
         at::mm_out(out, x, x.t());
         return out + 1;
       }},
      {"several results",
       [](const Tensor& x, Tensor&) {
         const auto [values, places] = x.sort(1, /*descending=*/true);
         return values * (places + 1);
       }},
      {"a list of results",
       [](const Tensor& x, Tensor&) {
         return at::cat(at::_foreach_mul({x, x}, 2.0));
       }},
      {"a list in place",
       [](const Tensor& x, Tensor& kept) {
         at::_foreach_add_(std::vector<Tensor>{kept}, std::vector<Tensor>{x});
         return kept + 1;
       }},
      {"indices", [](const Tensor& x, Tensor&) { return x.index({x.argmax(1)}); }},
      {"a copy to another dtype",
       [](const Tensor& x, Tensor&) { return x.to(torch::kDouble).to(torch::kFloat); }},
      {"a copy in another order",
       [](const Tensor& x, Tensor&) { return torch::empty_like(x.t()).copy_(x.t()).contiguous(); }},
      {"a larger storage",
       [](const Tensor& x, Tensor&) {
         Tensor grown = x.clone();
         grown.resize_({8, 8});
         return grown.view({-1}).narrow(0, 0, x.numel()).clone();
       }},
      {"a convolution",
       [&](const Tensor& x, Tensor&) {
         return at::convolution(x.view({1, 2, 2, 4}), filter, {}, {1, 1}, {0, 0}, {1, 1}, false,
                                {0, 0}, 1);
       }},
      {"a cell of layers.cpp",
       [&](const Tensor& x, Tensor&) {
         const Tensor input = gates + x.sum();
         return std::get<0>(at::_thnn_fused_lstm_cell(input, gates, cell));
       }},
      {"complex numbers",
       [](const Tensor& x, Tensor&) {
         const Tensor complex = at::view_as_complex(x.view({4, 2, 2}));
         return at::view_as_real(complex * complex);
       }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    Tensor x = side_values({4, 4});
    Tensor kept = side_values({4, 4});
    const auto [graph, found] = captured_result([&] { return call.body(x, kept); });
    for (int i = 1; i <= 3; ++i) {
      Tensor expected;
      on(side_, [&] {
        x.copy_(torch::rand({4, 4}));
        Tensor other = kept.clone();
        expected = call.body(x, other);
        graph.replay();
        EXPECT_TRUE(torch::equal(kept.cpu(), other.cpu()));
      });
      EXPECT_EQ(found.sizes(), expected.sizes());
      EXPECT_EQ(numbers(found), numbers(expected));
    }
  }
}

TEST_F(SimCapture, work_and_replays_are_counted) {
  Tensor x = side_values({4});
  reset_counters(0);
  const Graph graph = captured([&] { x.mul_(2).add_(1); });
  EXPECT_EQ(graph.work_count(), 2U);
  EXPECT_EQ(counters(0).kernels, 0);
  EXPECT_EQ(counters(0).captured_kernels, 2);
  replay(graph);
  replay(graph);
  EXPECT_EQ(counters(0).kernels, 0);
  EXPECT_EQ(counters(0).replays, 2);
  EXPECT_EQ(counters(0).host_waits(), 0);
}

TEST_F(SimCapture, a_capture_that_is_not_ended_leaves_nothing) {
  Tensor x = side_values({4});
  on(side_, [&] {
    const Capture capture(0);
    x.mul_(3);
  });
  EXPECT_THAT(numbers(x), Each(2));
  const Graph graph = captured([&] { x.mul_(5); });
  replay(graph);
  EXPECT_THAT(numbers(x), Each(10));
}

TEST_F(SimCapture, wrong_calls_are_refused) {
  EXPECT_THROW(Capture(0), c10::Error) << "on the default stream";
  on(side_, [&] {
    Capture capture(0);
    EXPECT_THROW(Capture(0), c10::Error) << "while another one goes on";
    on(main_, [&] { EXPECT_THROW(capture.end(), c10::Error) << "on another stream"; });
    const Graph graph = capture.end();
    EXPECT_THROW(capture.end(), c10::Error) << "twice";
    const Capture other(0);
    EXPECT_THROW(graph.replay(), c10::Error) << "in a capture";
  });
}

TEST_F(SimCapture, devices_capture_on_their_own) {
  const c10::Stream other = new_stream(1, "side");
  on(other, [&] {
    Tensor y = torch::ones({4}, torch::TensorOptions().device(device_at(1)));
    Tensor x = side_values({4});
    Capture capture(1);
    const Graph of_0 = captured([&] { x.mul_(2); });
    y.mul_(3);
    x + 1;  // is eager work again
    const Graph of_1 = capture.end();
    of_1.replay();
    EXPECT_EQ(y.cpu()[0].item<float>(), 3);
  });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("race: aten::add on the default stream")));
}

// ---- streams

TEST_F(SimCapture, streams_join_by_events_and_are_joined_back) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = side_values({4});
  Tensor y = side_values({4});
  const Graph graph = captured([&] {
    x.add_(1);
    order_by_event(side_, third);
    on(third, [&] { y.mul_(x); });
    order_by_event(third, side_);
    x.mul_(y);
  });
  replay(graph);
  EXPECT_THAT(numbers(y), Each(6));
  EXPECT_THAT(numbers(x), Each(18));
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimCapture, a_joined_stream_does_its_own_work_again_after_the_capture) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = side_values({4});
  const Graph graph = captured([&] {
    order_by_event(side_, third);
    on(third, [&] { x.add_(1); });
    order_by_event(third, side_);
  });
  on(third, [&] { x.add_(1); });
  EXPECT_THAT(take_findings(), Contains(HasSubstr("race: aten::add on third")))
      << "the streams were in order in the capture alone";
}

TEST_F(SimCapture, a_stream_that_is_not_joined_back_is_reported) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = side_values({4});
  captured([&] {
    order_by_event(side_, third);
    on(third, [&] { read_it(x); });
  });
  EXPECT_THAT(take_findings(),
              ElementsAre(AllOf(HasSubstr("third of device 0 was not joined into side of device 0"),
                                HasSubstr("its last work: read_it"))));
}

TEST_F(SimCapture, a_stream_whose_last_work_is_not_joined_back_is_reported) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = side_values({4});
  captured([&] {
    order_by_event(side_, third);
    on(third, [&] { x.add_(1); });
    order_by_event(third, side_);
    on(third, [&] { x.add_(1); });
  });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("third of device 0 was not joined")));
}

TEST_F(SimCapture, work_of_another_stream_is_reported) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = values({4});
  order_by_event(main_, third);
  captured([&] { on(third, [&] { x.add_(1); }); });
  EXPECT_THAT(take_findings(),
              ElementsAre(AllOf(HasSubstr("in a capture: aten::add on third of device 0, which is "
                                          "not part of it"),
                                HasSubstr("capture_test.cpp"))));
}

TEST_F(SimCapture, memory_of_another_stream_is_reported) {
  const c10::Stream third = new_stream(0, "third");
  captured([&] { on(third, [&] { torch::empty({4}, torch::TensorOptions().device(device_)); }); });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("the allocation on third of device 0")));
}

TEST_F(SimCapture, an_event_of_outside_is_reported) {
  c10::Event event(c10::kPrivateUse1);
  event.record(main_);
  captured([&] { event.block(side_); });
  EXPECT_THAT(take_findings(),
              ElementsAre(AllOf(HasSubstr("side of device 0 waits for an event of the default "
                                          "stream of device 0 that was recorded outside"),
                                HasSubstr("capture_test.cpp"))));
}

TEST_F(SimCapture, an_event_of_a_capture_is_of_no_use_after_it) {
  c10::Event event(c10::kPrivateUse1);
  captured([&] { event.record(side_); });
  event.block(main_);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("that was recorded in another capture")));
  event.synchronize();
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("that was recorded in a capture")));
  event.query();
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("that was recorded in a capture")));
}

TEST_F(SimCapture, the_default_stream_in_a_capture_is_reported) {
  Tensor x = side_values({4});
  captured([&] {
    order_by_event(side_, main_);
    on(main_, [&] { x.add_(1); });
    order_by_event(main_, side_);
  });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("the default stream cannot be part of")));
}

TEST_F(SimCapture, races_in_a_capture_are_reported) {
  const c10::Stream third = new_stream(0, "third");
  Tensor x = side_values({4});
  captured([&] {
    order_by_event(side_, third);
    x.add_(1);
    on(third, [&] { x + 1; });
    order_by_event(third, side_);
  });
  EXPECT_THAT(take_findings(), ElementsAre(AllOf(HasSubstr("race: aten::add on third"),
                                                 HasSubstr("aten::add on side"))));
}

TEST_F(SimCapture, a_replay_is_compared_with_work_of_other_streams) {
  Tensor x = side_values({4});
  const Graph graph = captured([&] { x.add_(1); });
  order_by_event(side_, main_);
  on(main_, [&] { x + 1; });
  EXPECT_THAT(take_findings(), IsEmpty());
  replay(graph);
  EXPECT_THAT(take_findings(),
              ElementsAre(HasSubstr("race: aten::add on side of device 0 writes what is read by "
                                    "aten::add on the default stream")));
  on(main_, [&] { x + 1; });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("race: aten::add on the default stream")));
  order_by_event(side_, main_);
  on(main_, [&] { graph.replay(); });
  EXPECT_THAT(take_findings(), IsEmpty());
}

// ---- the host

TEST_F(SimCapture, waits_of_the_host_are_reported) {
  const Tensor x = side_values({4});
  const Tensor one = side_values({});
  Tensor on_host = torch::empty({4});
  c10::Event before(c10::kPrivateUse1);
  before.record(side_);
  const std::vector<std::pair<std::string, Body>> cases{
      {"the host waits for a number", [&] { one.item(); }},
      {"the host waits for a number", [&] { x.nonzero(); }},
      {"the host waits for a number", [&] { torch::equal(x, x); }},
      {"the host waits for a stream", [&] { guard_.synchronizeStream(side_); }},
      {"the host waits for a stream", [&] { guard_.synchronizeStream(main_); }},
      {"the host waits for the device", [&] { guard_.synchronizeDevice(0); }},
      {"the host waits for an event", [&] { before.synchronize(); }},
      {"the host waits for an event",
       [&] {
         c10::Event event(c10::kPrivateUse1);
         event.record(side_);
         event.synchronize();
       }},
      {"the host asks whether work is over", [&] { before.query(); }},
      {"the host asks whether work is over", [&] { guard_.queryStream(side_); }},
      {"the host waits for a copy", [&] { on_host.copy_(x); }},
      {"the host waits for a copy", [&] { on_host.copy_(x, /*non_blocking=*/true); }},
  };
  for (const auto& [what, body] : cases) {
    captured(body);
    EXPECT_THAT(take_findings(), ElementsAre(AllOf(HasSubstr("in a capture: " + what),
                                                   HasSubstr("capture_test.cpp"))));
  }
}

TEST_F(SimCapture, copies_from_memory_that_is_not_pinned_are_reported) {
  const Tensor on_host = torch::ones({4});
  Tensor x = side_values({4});
  captured([&] { x.copy_(on_host, /*non_blocking=*/true); });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("a copy from memory that is not pinned")));
  const Tensor places = torch::zeros({1}, torch::kLong);
  captured([&] { x.index({places}); });
  EXPECT_THAT(take_findings(), Contains(HasSubstr("aten::index copies a tensor of the host")));
}

TEST_F(SimCapture, pinned_memory_must_be_there_before) {
  captured([&] { pinned(1); });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("in a capture: pinned memory is allocated")));
}

TEST_F(SimCapture, copies_of_pinned_memory_are_replayed) {
  Tensor from = pinned(1);
  Tensor to = pinned(5);
  Tensor x = side_values({4});
  const Graph graph = captured([&] {
    x.copy_(from, /*non_blocking=*/true);
    x.add_(1);
    to.copy_(x, /*non_blocking=*/true);
  });
  guard_.synchronizeStream(side_);
  EXPECT_TRUE(to.eq(5).all().item<bool>());
  for (int i = 3; i < 6; ++i) {
    from.fill_(i);
    replay(graph);
    EXPECT_TRUE(to.isnan().all().item<bool>()) << "before the host has waited";
    guard_.synchronizeStream(side_);
    EXPECT_TRUE(to.eq(i + 1).all().item<bool>());
  }
  EXPECT_THAT(take_findings(), IsEmpty());
  replay(graph);
  from.fill_(0);
  guard_.synchronizeStream(side_);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("the host changed pinned memory before")));
}

TEST_F(SimCapture, pinned_memory_that_was_freed_is_reported) {
  Tensor from = pinned(1);
  Tensor to = pinned(1);
  Tensor x = side_values({4});
  const Graph graph = captured([&] {
    x.copy_(from, /*non_blocking=*/true);
    to.copy_(x, /*non_blocking=*/true);
  });
  from.reset();
  to.reset();
  replay(graph);
  EXPECT_THAT(take_findings(),
              testing::UnorderedElementsAre(
                  HasSubstr("uses pinned memory that was freed after its capture: a copy from"),
                  HasSubstr("uses pinned memory that was freed after its capture: a copy to")));
}

// ---- memory

TEST_F(SimCapture, memory_that_was_freed_after_the_capture_is_reported_with_its_operator) {
  Tensor x = side_values({7'000});
  Tensor y = side_values({4});
  const Graph graph = captured([&] { y.add_(x.sum()); });
  replay(graph);
  EXPECT_THAT(take_findings(), IsEmpty());
  x.reset();
  replay(graph);
  const auto freed =
      AllOf(HasSubstr("a graph uses memory that was freed after its capture: aten::sum"),
            ContainsRegex("captured: .*capture_test.cpp.*\n.*replayed: .*capture_test.cpp"));
  EXPECT_THAT(take_findings(), ElementsAre(freed));
  // The same address, and another tensor.
  x = side_values({7'000});
  replay(graph);
  EXPECT_THAT(take_findings(), ElementsAre(freed));
}

TEST_F(SimCapture, memory_that_is_freed_in_the_capture_is_reported_too) {
  Tensor x = side_values({7'100});
  const Graph graph = captured([&] {
    x.add_(1);
    x.reset();
  });
  replay(graph);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("freed after its capture: aten::add")));
}

TEST_F(SimCapture, memory_of_the_graph_is_reused_in_the_capture_by_the_same_stream) {
  const auto options = torch::TensorOptions().device(device_);
  const c10::Stream third = new_stream(0, "third");
  captured([&] {
    const void* const first = torch::empty({7'200}, options).const_data_ptr();
    EXPECT_EQ(torch::empty({7'200}, options).const_data_ptr(), first);
    order_by_event(side_, third);
    on(third, [&] { EXPECT_NE(torch::empty({7'200}, options).const_data_ptr(), first); });
  });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimCapture, memory_that_another_stream_used_is_not_reused_in_the_capture) {
  const c10::Stream third = new_stream(0, "third");
  captured([&] {
    Tensor x = values({7'300});
    const void* const address = x.const_data_ptr();
    order_by_event(side_, third);
    on(third, [&] { x + 1; });
    x.record_stream(third);
    x.reset();
    order_by_event(third, side_);
    EXPECT_NE(values({7'300}).const_data_ptr(), address);
  });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimCapture, reuse_in_the_capture_without_record_stream_is_reported) {
  const c10::Stream third = new_stream(0, "third");
  captured([&] {
    Tensor x = values({7'400});
    order_by_event(side_, third);
    on(third, [&] { x + 1; });
    x.reset();
    values({7'400});
    order_by_event(third, side_);
  });
  EXPECT_THAT(take_findings(),
              Contains(HasSubstr("the allocation on side of device 0 writes what is "
                                 "read by aten::add on third")));
}

TEST_F(SimCapture, memory_of_the_graph_is_lent_to_nobody_else_while_it_lives) {
  side_values({7'500});  // a free block, which the capture leaves alone
  const void* address = nullptr;
  {
    const auto before = counters(0).memory.held_bytes;
    auto [graph, made] = captured_result([&] {
      values({7'500});
      return values({7'500});
    });
    address = made.const_data_ptr();
    made.reset();
    EXPECT_GE(counters(0).memory.held_bytes, before + 30'000);
    EXPECT_NE(side_values({7'500}).const_data_ptr(), address);
    replay(graph);
    side_values({7'500});
  }
  EXPECT_THAT(take_findings(), IsEmpty());
  on(side_, [&] {
    const Tensor first = values({7'500});
    const Tensor second = values({7'500});
    EXPECT_TRUE(first.const_data_ptr() == address || second.const_data_ptr() == address);
  });
}

TEST_F(SimCapture, memory_without_content_is_nan_at_each_replay) {
  const auto [graph, sum] = captured_result([&] {
    values({7'600});  // leaves its numbers in the block
    return torch::empty({7'600}, torch::TensorOptions().device(device_)).sum();
  });
  for (int i = 0; i < 2; ++i) {
    replay(graph);
    on(side_, [&, found = sum] { EXPECT_TRUE(found.cpu().isnan().item<bool>()); });
  }
}

TEST_F(SimCapture, use_of_freed_memory_in_a_capture_is_reported) {
  captured([&] {
    Tensor x = values({7'700});
    const Tensor stray = torch::from_blob(x.data_ptr(), {4}, x.options());
    x.reset();
    stray + 1;
  });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("use after free: aten::add on side")));
}

// ---- random numbers

TEST_F(SimCapture, each_replay_draws_the_next_random_numbers) {
  auto generator = at::globalContext().defaultGenerator(device_);
  const auto options = torch::TensorOptions().device(device_);
  const Tensor x = side_values({64});
  const auto draw = [&] { return torch::dropout(torch::rand({64}, options) + x, 0.5, true); };
  generator.set_current_seed(3);
  const auto [graph, found] = captured_result(draw);
  std::vector<std::vector<float>> draws;
  for (int i = 0; i < 3; ++i) {
    replay(graph);
    draws.push_back(numbers(found));
  }
  generator.set_current_seed(3);
  for (int i = 0; i < 3; ++i) {
    Tensor expected;
    on(side_, [&] { expected = draw(); });
    EXPECT_EQ(draws[static_cast<std::size_t>(i)], numbers(expected)) << i;
  }
  EXPECT_NE(draws[0], draws[1]);
}

TEST_F(SimCapture, a_generator_of_the_program_is_reported) {
  at::Generator own = at::globalContext().defaultGenerator(device_).clone();
  captured([&] { torch::rand({4}, own, torch::TensorOptions().device(device_)); });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("a generator that is not the device's own")));
}

}  // namespace
}  // namespace fsdp::test::sim
