// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/cycles.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/machine.h"
#include "formats/containers/pickle/writer.h"
#include "formats/state/content/value_compare.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/pickle_stream.h"

namespace fsdp::formats {
namespace {

using test::get;
using test::global;
using test::number;
using test::proto;
using test::put;
using test::repeat;
using test::text;

// Accepts streams that hold themselves, and counts how often it was asked.
class RestartingHost : public PickleHost {
 public:
  std::int32_t global(std::string_view, std::string_view) override { return -1; }
  bool restart() override {
    ++restarts;
    return true;
  }
  int restarts = 0;
};

Value read(const std::string& stream, int restarts = 1) {
  RestartingHost host;
  Value value = read_pickle(MemorySource(test::to_bytes(stream)), host);
  EXPECT_EQ(host.restarts, restarts);
  return value;
}

// Written and read again it is the same value.
void expect_round_trip(const Value& value) {
  const Value again = read(write_pickle(value));
  EXPECT_TRUE(compare_values(value, again).same);
}

TEST(PickleCycles, a_list_in_itself_is_a_number_there) {
  const Value list = read(proto(2, "]" + put(0) + "(" + number(7) + get(0) + "e"));
  ASSERT_EQ(list.items().size(), 2U);
  EXPECT_EQ(list.items()[0].as_int(), 7);
  ASSERT_TRUE(back_reference(list.items()[1]));
  EXPECT_EQ(back_reference(list.items()[1]), cycle_number(list));
  EXPECT_NE(cycle_number(list), 0U);
  EXPECT_TRUE(holds_back_reference(list));
  expect_round_trip(list);
}

TEST(PickleCycles, a_dict_a_set_and_an_object_in_themselves) {
  const Value dict = read(proto(2, "}" + put(0) + text("self") + get(0) + "s"));
  EXPECT_EQ(back_reference(dict.entries()[0].second), cycle_number(dict));
  expect_round_trip(dict);

  const std::string object = global("m", "C") + ")\x81" + put(0);
  const Value state = read(proto(2, object + "}" + text("parent") + get(0) + "sb"));
  EXPECT_EQ(back_reference(state.as_object()->state.entries()[0].second), cycle_number(state));
  expect_round_trip(state);
  expect_round_trip(read(proto(2, object + get(0) + "a")));
  expect_round_trip(read(proto(2, object + text("k") + get(0) + "s")));

  const Value set = read(proto(4, "\x8f" + put(0) + "(" + get(0) + "\x90"));
  EXPECT_EQ(back_reference(set.items()[0]), cycle_number(set));
}

TEST(PickleCycles, children_refer_to_parents_that_refer_to_theirs) {
  // root {a: {up: root, b: {up: a}}, n: 1}
  const std::string stream =
      proto(2, "}" + put(0) + "(" + text("a") + "}" + put(1) + "(" + text("up") + get(0) +
                   text("b") + "}" + text("up") + get(1) + "su" + text("n") + number(1) + "u");
  const Value root = read(stream);
  const Value& a = *root.find("a");
  EXPECT_EQ(back_reference(*a.find("up")), cycle_number(root));
  EXPECT_EQ(back_reference(*a.find("b")->find("up")), cycle_number(a));
  EXPECT_EQ(root.find("n")->as_int(), 1);
  expect_round_trip(root);
  // The depth is that of the tree: the back-references own nothing.
  EXPECT_EQ(root.depth(), 3U);
}

TEST(PickleCycles, what_is_fetched_when_it_is_complete_is_itself) {
  // [{self: <itself>}, the same dict again]
  const Value list = read(proto(2, "](}" + put(0) + text("self") + get(0) + "s" + get(0) + "e"));
  ASSERT_EQ(list.items().size(), 2U);
  EXPECT_EQ(list.items()[0].identity(), list.items()[1].identity());
  expect_round_trip(list);
}

TEST(PickleCycles, streams_of_other_hosts_are_refused_as_before) {
  class Plain : public PickleHost {
    std::int32_t global(std::string_view, std::string_view) override { return -1; }
  } host;
  const std::string stream = proto(2, "]" + put(0) + get(0) + "a");
  test::expect_error(ErrorCode::kCycle, "would change a list",
                     [&] { read_pickle(MemorySource(test::to_bytes(stream)), host); });
}

TEST(PickleCycles, a_container_is_not_changed_through_a_reference_to_it) {
  // [] fetched, and changed at the place of the fetch: no pickler writes that.
  test::expect_error(ErrorCode::kCycle, "would change a container",
                     [&] { read(proto(2, "](]" + put(0) + get(0) + number(1) + "a" + "e")); });
  test::expect_error(ErrorCode::kBuild, "sets the state of a", [&] {
    read(proto(2, "](" + global("m", "C") + ")\x81" + put(0) + get(0) + "}be"));
  });
  test::expect_error(ErrorCode::kReduce, "cannot be called",
                     [&] { read(proto(2, "]" + put(0) + get(0) + ")R" + number(1) + "aa")); });
}

TEST(PickleCycles, a_part_is_not_written_without_the_whole) {
  const Value dict = read(proto(2, "}" + put(0) + text("a") + "]" + get(0) + "as"));
  test::expect_error(ErrorCode::kCycle, "cannot be written without the container",
                     [&] { write_pickle(*dict.find("a")); });
}

TEST(PickleCycles, numbers_of_two_streams_differ) {
  const std::string stream = proto(2, "]" + put(0) + get(0) + "a");
  const Value a = read(stream);
  const Value b = read(stream);
  EXPECT_NE(cycle_number(a), cycle_number(b));
  expect_round_trip(Value::list({a, b}));
}

TEST(PickleCycles, another_shape_of_the_cycle_is_another_value) {
  // {a: {up: root}} and {a: {up: a}}
  const Value up = read(proto(2, "}" + put(0) + text("a") + "}" + put(1) + text("b") + get(1) +
                                     "s" + text("x") + get(0) + "ss"));
  const Value self = read(proto(2, "}" + put(0) + text("a") + "}" + put(1) + text("b") + get(0) +
                                       "s" + text("x") + get(1) + "ss"));
  EXPECT_FALSE(compare_values(up, self).same);
  EXPECT_TRUE(compare_values(up, up).same);
}

TEST(PickleCycles, the_stack_of_the_second_look_is_bounded) {
  PickleLimits limits;
  limits.max_nodes = 1'000;
  RestartingHost host;
  const std::string stream =
      proto(2, "]" + put(0) + get(0) + "a" + repeat("]", 100'000) + repeat("a", 100'000));
  EXPECT_THROW(read_pickle(MemorySource(test::to_bytes(stream)), host, limits), Error);
}

}  // namespace
}  // namespace fsdp::formats
