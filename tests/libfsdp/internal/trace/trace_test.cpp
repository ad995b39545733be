// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/trace/trace.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "formats/bytes/base/json.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
using namespace internal;
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Trace::Clock::time_point kBegin{5s};
const std::chrono::system_clock::time_point kEpoch{1000s};

struct Event {
  std::string name;
  std::string category;
  std::int64_t thread;
  double ts;
  double dur;
};

double number(const formats::Json& json) {
  if (const auto* integer = json.as_int()) return static_cast<double>(*integer);
  return std::get<double>(json.storage());
}

// The spans of a trace, read by a strict parser.
std::vector<Event> events_of(const Trace& trace) {
  std::ostringstream out;
  trace.write(out);
  const auto json = formats::parse_json(out.str());
  std::vector<Event> result;
  for (const auto& event : *json.find("traceEvents")->as_array()) {
    if (*event.find("ph")->as_string() != "X") continue;
    result.push_back({.name = *event.find("name")->as_string(),
                      .category = *event.find("cat")->as_string(),
                      .thread = *event.find("tid")->as_int(),
                      .ts = number(*event.find("ts")),
                      .dur = number(*event.find("dur"))});
  }
  return result;
}

TEST(Trace, spans_are_written_with_their_lane_and_the_time_of_day_in_microseconds) {
  Trace trace(3, 10, kBegin, kEpoch);
  trace.add(TraceLane::kReduce, "reduce blocks.1", kBegin + 1500ns, kBegin + 4us);
  trace.add(TraceLane::kUnshard, "unshard blocks.1", kBegin, kBegin + 2us);
  std::ostringstream out;
  trace.write(out);
  EXPECT_EQ(out.str(),
            R"({"displayTimeUnit":"ms","otherData":{"dropped_spans":0},"traceEvents":[)"
            "\n"
            R"({"ph":"M","name":"process_name","pid":3,"args":{"name":"rank 3"}},)"
            "\n"
            R"({"ph":"M","name":"thread_name","pid":3,"tid":16,"args":{"name":"unshard"}},)"
            "\n"
            R"({"ph":"X","name":"unshard blocks.1","cat":"unshard","pid":3,"tid":16,)"
            R"("ts":1000000000.000,"dur":2.000},)"
            "\n"
            R"({"ph":"M","name":"thread_name","pid":3,"tid":32,"args":{"name":"reduce"}},)"
            "\n"
            R"({"ph":"X","name":"reduce blocks.1","cat":"reduce","pid":3,"tid":32,)"
            R"("ts":1000000001.500,"dur":2.500})"
            "\n]}\n");
}

TEST(Trace, names_of_any_bytes_are_valid_json) {
  Trace trace(0);
  const std::string name = "a\"b\\c\n\t\x01 \xc3\xa9 \xff end";
  trace.add(TraceLane::kCopy, name, kBegin, kBegin);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "a\"b\\c\n\t\x01 \xc3\xa9 \xef\xbf\xbd end");
}

TEST(Trace, an_empty_one_is_valid_json) {
  EXPECT_TRUE(events_of(Trace(0)).empty());
}

TEST(Trace, the_latest_spans_are_kept) {
  Trace trace(0, 3, kBegin, kEpoch);
  for (int i = 0; i < 5; ++i) {
    trace.add(TraceLane::kCompute, std::to_string(i), kBegin + i * 1us, kBegin + i * 1us);
  }
  EXPECT_EQ(trace.size(), 3U);
  EXPECT_EQ(trace.dropped(), 2U);
  std::vector<std::string> names;
  for (const auto& event : events_of(trace)) names.push_back(event.name);
  EXPECT_THAT(names, ElementsAre("2", "3", "4"));
}

TEST(Trace, spans_that_overlap_get_rows_of_their_own_and_spans_inside_others_do_not) {
  Trace trace(0, 10, kBegin, kEpoch);
  const auto add = [&](const char* name, int start, int end) {
    trace.add(TraceLane::kUnshard, name, kBegin + start * 1us, kBegin + end * 1us);
  };
  add("outer", 0, 10);
  add("inner", 2, 5);
  add("innermost", 2, 3);
  add("overlaps", 8, 12);
  add("overlaps both", 9, 14);
  add("after", 12, 13);
  std::map<std::string, std::int64_t> rows;
  for (const auto& event : events_of(trace)) rows[event.name] = event.thread - 16;
  EXPECT_EQ(rows, (std::map<std::string, std::int64_t>{{"outer", 0},
                                                       {"inner", 0},
                                                       {"innermost", 0},
                                                       {"overlaps", 1},
                                                       {"overlaps both", 2},
                                                       {"after", 0}}));
}

TEST(Trace, a_lane_with_more_overlaps_than_rows_does_not_run_into_the_next) {
  Trace trace(0, 100, kBegin, kEpoch);
  for (int i = 0; i < 40; ++i) {
    trace.add(TraceLane::kUnshard, "u", kBegin + i * 1us, kBegin + (i + 100) * 1us);
  }
  for (const auto& event : events_of(trace)) {
    EXPECT_GE(event.thread, 16);
    EXPECT_LT(event.thread, 32);
  }
}

TEST(Trace, threads_add_at_once) {
  Trace trace(0, 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) TraceSpan(&trace, TraceLane::kCopy, "copy", std::to_string(i));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(trace.size(), 1000U);
  EXPECT_EQ(trace.dropped(), 1000U);
  EXPECT_EQ(events_of(trace).size(), 1000U);
}

TEST(Trace, a_file_holds_what_a_stream_gets) {
  const test::TempDir folder;
  Trace trace(0, 10, kBegin, kEpoch);
  trace.add(TraceLane::kCompute, "forward", kBegin, kBegin + 1us);
  std::ostringstream out;
  trace.write(out);
  trace.write(folder.path() / "trace.json");
  std::ifstream file(folder.path() / "trace.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), out.str());
  try {
    trace.write(folder.path() / "missing" / "trace.json");
    FAIL() << "written into a folder that is not there";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("missing/trace.json: expected"));
  }
}

TEST(TraceSpan, covers_its_life_and_nests) {
  Trace trace(0);
  {
    const TraceSpan outer(&trace, TraceLane::kCompute, "forward");
    const TraceSpan inner(&trace, TraceLane::kUnshard, "unshard", "blocks.1");
    std::this_thread::sleep_for(2ms);
  }
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].name, "forward");
  EXPECT_EQ(events[1].name, "unshard blocks.1");
  EXPECT_GE(events[1].dur, 2000);
  EXPECT_GE(events[0].dur, events[1].dur);
}

TEST(TraceSpan, is_seen_by_profilers_with_and_without_a_trace) {
  Trace trace(0);
  std::vector<std::string> seen;
  static std::vector<std::string>* sink = nullptr;
  sink = &seen;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        sink->emplace_back(function.name());
        return nullptr;
      }).scopes({at::RecordScope::USER_SCOPE}));
  { const TraceSpan span(nullptr, TraceLane::kUnshard, "unshard", "blocks.1"); }
  { const TraceSpan span(&trace, TraceLane::kReduce, "reduce"); }
  at::removeCallback(handle);
  { const TraceSpan span(nullptr, TraceLane::kUnshard, "unshard", "blocks.2"); }
  EXPECT_THAT(seen, ElementsAre("fsdp: unshard blocks.1", "fsdp: reduce"));
  EXPECT_EQ(trace.size(), 1U);
}

}  // namespace
}  // namespace fsdp
