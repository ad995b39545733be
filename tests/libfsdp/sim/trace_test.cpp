// SPDX-License-Identifier: Apache-2.0
// Traces of simulated devices, on which every kernel takes a second: the host queues whole steps in
// less, so a span of the host's time is found at once.
#include "libfsdp/internal/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "formats/bytes/base/json.h"
#include "tests/libfsdp/sim/scene.h"

namespace fsdp::test {
namespace {

constexpr int kSteps = 3;

struct Span {
  double start = 0;  // seconds since the first
  double end = 0;
};

double number(const formats::Json& json) {
  if (const auto* integer = json.as_int()) return static_cast<double>(*integer);
  return std::get<double>(json.storage());
}

// The spans by "category: name", each list in the order of their starts.
using Spans = std::map<std::string, std::vector<Span>>;

Spans spans_of(const internal::Trace& trace) {
  std::ostringstream out;
  trace.write(out);
  Spans result;
  std::optional<double> first;
  const auto json = formats::parse_json(out.str());
  for (const auto& event : *json.find("traceEvents")->as_array()) {
    if (*event.find("ph")->as_string() != "X") continue;
    const double start = number(*event.find("ts")) / 1e6;
    if (!first) first = start;
    result[*event.find("cat")->as_string() + ": " + *event.find("name")->as_string()].push_back(
        {start - *first, start - *first + number(*event.find("dur")) / 1e6});
  }
  return result;
}

std::string block(int i) {
  return "blocks." + std::to_string(i);
}

Spans traced_steps(Scene scene) {
  Spans result;
  run(scene, [&](ShardedGpt& sharded, const Group& group) {
    torch::optim::SGD optimizer(sharded.parameters(), 0.05);
    std::vector<Tensor> tokens;
    for (int i = 0; i < kSteps; ++i) tokens.push_back(device_tokens(group->rank(), i));
    sharded.start_trace();
    sim::reset_counters(group->rank());
    for (const Tensor& input : tokens) {
      next_token_loss(sharded.forward(input), input).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(sim::counters(group->rank()).host_waits(), 0) << "the trace waits when it is written";
    const internal::Trace& trace = *internal::engine_of(sharded).trace();
    if (group->rank() == 0) result = spans_of(trace);
  });
  return result;
}

TEST(SimTrace, spans_are_when_the_device_works) {
  Scene scene;
  const Spans spans = traced_steps(scene);
  for (const auto& [name, all] : spans) {
    for (const Span& span : all) {
      EXPECT_NEAR(span.start, std::round(span.start), 1e-3) << name;
      EXPECT_NEAR(span.end, std::round(span.end), 1e-3) << name;
    }
  }
  for (int i = 0; i < scene.layers; ++i) {
    const auto& forwards = spans.at("compute: forward " + block(i));
    const auto& backwards = spans.at("compute: backward " + block(i));
    const auto& gathers = spans.at("unshard: all-gather of " + block(i));
    const auto& copies = spans.at("copy: unshard " + block(i));
    const auto& reductions = spans.at("reduce: gradient reduction of " + block(i));
    ASSERT_EQ(forwards.size(), kSteps);
    ASSERT_EQ(backwards.size(), kSteps);
    ASSERT_EQ(reductions.size(), kSteps);
    ASSERT_EQ(gathers.size(), copies.size());
    for (std::size_t k = 0; k < gathers.size(); ++k) {
      EXPECT_GE(gathers[k].end - gathers[k].start, 1) << "the collective and its kernel";
      EXPECT_GE(copies[k].end, gathers[k].end);
    }
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(std::any_of(copies.begin(), copies.end(),
                              [&](const Span& copy) {
                                return copy.end <= forwards[step].end &&
                                       copy.start >= (step == 0 ? 0 : backwards[step - 1].start);
                              }))
          << block(i) << " in step " << step;
      EXPECT_GE(backwards[step].end - backwards[step].start, 2);
      EXPECT_GE(reductions[step].end, backwards[step].start);
    }
  }
}

// That is what prefetching is for, and what a trace has to show.
TEST(SimTrace, gathers_ahead_overlap_backwards) {
  const Spans spans = traced_steps(Scene());
  std::vector<Span> backwards;
  for (const auto& [name, all] : spans) {
    if (name.starts_with("compute: backward"))
      backwards.insert(backwards.end(), all.begin(), all.end());
  }
  int overlaps = 0;
  for (const Span& gather : spans.at("unshard: all-gather of " + block(1))) {
    overlaps += std::any_of(backwards.begin(), backwards.end(), [&](const Span& backward) {
      return gather.start < backward.end && gather.end > backward.start;
    });
  }
  EXPECT_EQ(overlaps, kSteps) << "one of a step's two gathers is for its backward";
}

TEST(SimTrace, leaves_no_event_behind) {
  run(Scene(), [](ShardedGpt& sharded, const Group& group) {
    const Tensor tokens = device_tokens(group->rank(), 0);
    const auto step = [&] {
      token_loss(sharded, group->rank(), 0).backward();
      sharded.zero_grad();
    };
    step();
    sharded.start_trace();
    step();
    std::ostringstream out;
    internal::engine_of(sharded).trace()->write(out);
    const auto before = sim::counters(group->rank()).events_alive;
    for (int i = 0; i < 4; ++i) step();
    internal::engine_of(sharded).trace()->write(out);
    EXPECT_LE(sim::counters(group->rank()).events_alive, before);
  });
}

}  // namespace
}  // namespace fsdp::test
