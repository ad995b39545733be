// SPDX-License-Identifier: Apache-2.0
// The checker of races: streams, events and chains of calls.
#include "tests/sim_device/sim_test.h"

namespace fsdp::test::sim {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SimChecker : public SimDevice {};

// Functions of their own, so that they are in chains of calls.
void __attribute__((noinline)) double_it(torch::Tensor& tensor) {
  tensor.mul_(2);
}
torch::Tensor __attribute__((noinline)) read_it(const torch::Tensor& tensor) {
  return tensor + 1;
}

TEST_F(SimChecker, a_race_is_reported_with_both_streams_operators_and_chains) {
  torch::Tensor x = values({8});
  double_it(x);
  on(side_, [&] { read_it(x); });
  const auto findings = take_findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings.front(),
              AllOf(HasSubstr("race: aten::add"), HasSubstr("on side of device 0 reads"),
                    HasSubstr("written by aten::mul"), HasSubstr("the default stream of device 0"),
                    ContainsRegex("now: read_it .tests/sim_device/checker_test.cpp:[0-9]+. < "),
                    ContainsRegex("earlier: double_it .tests/sim_device/checker_test.cpp:[0-9]+")));
}

TEST_F(SimChecker, an_access_after_an_event_is_not_reported) {
  torch::Tensor x = values({8});
  double_it(x);
  order_by_event(main_, side_);
  on(side_, [&] { double_it(x); });
  order_by_event(side_, main_);
  read_it(x);
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimChecker, a_write_before_the_reader_of_another_stream_is_done_is_reported) {
  torch::Tensor x = values({8});
  order_by_event(main_, side_);
  on(side_, [&] { read_it(x); });
  double_it(x);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("writes what is read by aten::add")));
}

TEST_F(SimChecker, an_event_orders_what_came_before_it_alone) {
  torch::Tensor x = values({8});
  c10::Event event(c10::kPrivateUse1);
  event.record(main_);
  double_it(x);
  event.block(side_);
  on(side_, [&] { read_it(x); });
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("written by aten::mul")));
}

TEST_F(SimChecker, order_passes_through_a_third_stream) {
  const c10::Stream third = new_stream(0, "third");
  torch::Tensor x = values({8});
  order_by_event(main_, third);
  order_by_event(third, side_);
  on(side_, [&] { double_it(x); });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimChecker, what_the_host_has_waited_for_is_over) {
  torch::Tensor x = values({8});
  on(side_, [&] {
    order_by_event(main_, side_);
    double_it(x);
  });
  guard_.synchronizeStream(side_);
  read_it(x);
  EXPECT_THAT(take_findings(), IsEmpty());
  EXPECT_EQ(counters(0).stream_waits, 1);
}

TEST_F(SimChecker, an_event_of_which_the_host_knows_is_over) {
  torch::Tensor x = values({8});
  order_by_event(main_, side_);
  c10::Event event(c10::kPrivateUse1);
  on(side_, [&] { double_it(x); });
  event.record(side_);
  EXPECT_FALSE(event.query());
  event.synchronize();
  EXPECT_TRUE(event.query());
  read_it(x);
  EXPECT_THAT(take_findings(), IsEmpty());
  EXPECT_EQ(counters(0).event_waits, 1);
}

TEST_F(SimChecker, who_asks_again_at_once_waits) {
  torch::Tensor x = values({8});
  double_it(x);
  c10::Event event(c10::kPrivateUse1);
  event.record(main_);
  EXPECT_FALSE(event.query());
  EXPECT_TRUE(event.query());
  EXPECT_EQ(counters(0).event_waits, 1);
}

TEST_F(SimChecker, who_asks_between_other_work_does_not_wait) {
  torch::Tensor x = values({8});
  c10::Event event(c10::kPrivateUse1);
  event.record(main_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(event.query());
    double_it(x);
  }
  EXPECT_EQ(counters(0).host_waits(), 0);
}

TEST_F(SimChecker, an_eager_device_is_done_when_it_is_asked) {
  set_progress(Progress::kEager);
  torch::Tensor x = values({8});
  c10::Event event(c10::kPrivateUse1);
  event.record(main_);
  EXPECT_TRUE(event.query());
  on(side_, [&] { read_it(x); });
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(SimChecker, rows_that_are_not_shared_are_not_compared) {
  torch::Tensor x = values({4, 8});
  order_by_event(main_, side_);
  on(side_, [&] { x.narrow(1, 0, 4).mul_(2); });
  x.narrow(1, 4, 4).mul_(2);
  EXPECT_THAT(take_findings(), IsEmpty());
  x.narrow(1, 3, 2).mul_(2);
  EXPECT_THAT(take_findings(), Contains(HasSubstr("writes what is written by")));
}

TEST_F(SimChecker, an_operator_runs_on_its_tensors_device_and_its_current_stream) {
  const torch::Tensor x = torch::ones({8}, torch::TensorOptions().device(device_at(1)));
  reset_counters(0);
  reset_counters(1);
  (x + 1).mul_(2);
  EXPECT_EQ(counters(0).kernels, 0);
  EXPECT_EQ(counters(0).memory.allocations, 0);
  EXPECT_EQ(counters(1).kernels, 2);
}

TEST_F(SimChecker, events_are_counted_while_they_live) {
  const auto before = counters(0).events_alive;
  {
    c10::Event event(c10::kPrivateUse1);
    event.record(main_);
    EXPECT_EQ(counters(0).events_alive, before + 1);
    EXPECT_EQ(counters(0).events_recorded, 1);
  }
  EXPECT_EQ(counters(0).events_alive, before);
}

TEST_F(SimChecker, the_host_waits_for_a_number_and_the_place_is_counted) {
  const torch::Tensor x = values({1});
  reset_counters(0);
  EXPECT_EQ(x.item<float>(), 2);
  const Counters found = counters(0);
  EXPECT_EQ(found.item_waits, 1);
  EXPECT_EQ(found.host_waits(), 1);
  ASSERT_EQ(found.wait_places.size(), 1U);
  EXPECT_THAT(found.wait_places.begin()->first, HasSubstr("checker_test.cpp"));
}

using SimDeviceDeathTest = SimDevice;

TEST_F(SimDeviceDeathTest, host_code_that_reads_a_device_address_dies) {
  const torch::Tensor x = values({8});
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile const char*>(x.const_data_ptr())),
               "simulated device: the host has read or written device memory");
}

}  // namespace
}  // namespace fsdp::test::sim
