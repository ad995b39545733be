// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/machine.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/pickle_stream.h"
#include "tests/support/pickle_values.h"

namespace fsdp::formats {
namespace {

using test::get;
using test::global;
using test::little_endian;
using test::number;
using test::proto;
using test::put;
using test::read_folded;
using test::read_with;
using test::repeat;
using test::text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;  // NOLINT(google-build-using-namespace): streams hold NUL

// Accepts every name and keeps everything as it is.
class InertHost : public PickleHost {
 public:
  std::int32_t global(std::string_view module, std::string_view name) override {
    names.push_back(std::string(module) + " " + std::string(name));
    return static_cast<std::int32_t>(names.size());
  }
  std::vector<std::string> names;
};

TEST(PickleMachine, numbers_have_the_value_that_python_reads) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"K\xff"s, 255},
      {"M\x01\x02"s, 0x201},
      {"J\xff\xff\xff\xff"s, -1},
      {"J\0\0\0\x80"s, INT32_MIN},
      {"\x8a\0"s, 0},
      {"\x8a\x01\xff"s, -1},
      {"\x8a\x02\xff\0"s, 255},
      {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s, INT64_MAX},
      {"\x8a\x08\0\0\0\0\0\0\0\x80"s, INT64_MIN},
      {"\x8a\x0c\x05\0\0\0\0\0\0\0\0\0\0\0"s, 5},
      {"\x8a\x0a\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff"s, -2},
      {"\x8b\x02\0\0\0\x01\x01"s, 257},
  };
  for (const auto& [opcodes, expected] : cases) {
    EXPECT_EQ(read_folded(proto(2, opcodes)).as_int(), expected);
  }
  EXPECT_EQ(read_folded(proto(2, "G\x3f\xf8\0\0\0\0\0\0"s)).as_float(), 1.5);
  EXPECT_EQ(read_folded(proto(2, "\x88")).as_bool(), true);
  EXPECT_EQ(read_folded(proto(2, "\x89")).as_bool(), false);
  EXPECT_TRUE(read_folded(proto(2, "N")).is_none());
}

TEST(PickleMachine, ints_beyond_64_bits_keep_their_bytes) {
  const std::string two_to_70 = "\0\0\0\0\0\0\0\0\x40"s;
  const Value value = read_folded(proto(2, "\x8a\x09" + two_to_70));
  EXPECT_EQ(value.kind(), ValueKind::kBigInt);
  EXPECT_EQ(*value.as_bytes(), two_to_70);
  EXPECT_EQ(*read_folded(proto(2, "\x8a\x0b" + two_to_70 + "\0\0"s)).as_bytes(), two_to_70);
  const std::string two_to_63 = "\0\0\0\0\0\0\0\x80\0"s;
  EXPECT_EQ(*read_folded(proto(2, "\x8a\x09" + two_to_63)).as_bytes(), two_to_63);
  const std::string long_one(300, '\x11');
  EXPECT_EQ(*read_folded(proto(2, "\x8b" + little_endian(300, 4) + long_one)).as_bytes(), long_one);
}

TEST(PickleMachine, every_opcode_for_text_and_bytes_is_read) {
  for (const std::string& opcodes : {"X\x02\0\0\0hi"s, "\x8c\x02hi"s, "\x8d\x02\0\0\0\0\0\0\0hi"s,
                                     "U\x02hi"s, "T\x02\0\0\0hi"s}) {
    const Value value = read_folded(proto(4, opcodes));
    ASSERT_NE(value.as_string(), nullptr);
    EXPECT_EQ(*value.as_string(), "hi");
  }
  for (const std::string& opcodes :
       {"C\x02h\xff"s, "B\x02\0\0\0h\xff"s, "\x8e\x02\0\0\0\0\0\0\0h\xff"s, "U\x02h\xff"s,
        "T\x02\0\0\0h\xff"s}) {
    const Value value = read_folded(proto(4, opcodes));
    EXPECT_EQ(value.kind(), ValueKind::kBytes);
    EXPECT_EQ(*value.as_bytes(), "h\xff");
  }
  EXPECT_EQ(read_folded(proto(5, "\x96\x02\0\0\0\0\0\0\0h\xff"s)).kind(), ValueKind::kByteArray);
  EXPECT_EQ(*read_folded(proto(2, text("\xED\xA0\x80"))).as_string(), "\xED\xA0\x80");
}

TEST(PickleMachine, every_opcode_for_containers_is_read) {
  const auto size = [](const std::string& opcodes) {
    return read_folded(proto(4, opcodes)).items().size();
  };
  EXPECT_EQ(size(")"), 0U);
  EXPECT_EQ(size("N\x85"), 1U);
  EXPECT_EQ(size("NN\x86"), 2U);
  EXPECT_EQ(size("NNN\x87"), 3U);
  EXPECT_EQ(size("(NNNNt"), 4U);
  EXPECT_EQ(size("(t"), 0U);
  EXPECT_EQ(size("]"), 0U);
  EXPECT_EQ(size("]Na"), 1U);
  EXPECT_EQ(size("](NNe(Ne"), 3U);
  EXPECT_EQ(size("\x8f"), 0U);
  EXPECT_EQ(size("\x8f(NK\x01\x90"s), 2U);
  EXPECT_EQ(size("(NK\x01\x91"s), 2U);
  EXPECT_EQ(read_folded(proto(4, "(NK\x01\x91"s)).kind(), ValueKind::kFrozenSet);
  const Value dict =
      read_folded(proto(2, "}" + text("a") + "Ns(" + text("b") + "K\x01" + text("c") + "K\x02u"));
  ASSERT_EQ(dict.entries().size(), 3U);
  EXPECT_EQ(dict.find("c")->as_int(), 2);
}

TEST(PickleMachine, objects_keep_what_was_called_and_what_was_put_into_them) {
  InertHost host;
  const Value value =
      read_with(host, proto(2, global("m", "C") + "K\x05\x85\x81" + "Na" + "(K\x01K\x02u" + "}b"));
  const ObjectData* const object = value.as_object();
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(object->callable.as_global()->dotted(), "m.C");
  EXPECT_EQ(object->callable.global_tag(), 1);
  EXPECT_EQ(object->args.items()[0].as_int(), 5);
  EXPECT_TRUE(object->by_new);
  EXPECT_TRUE(object->built);
  EXPECT_EQ(object->state.kind(), ValueKind::kDict);
  EXPECT_EQ(object->list_items.size(), 1U);
  EXPECT_EQ(object->dict_items.size(), 1U);
  EXPECT_TRUE(is_call_of(read_with(host, proto(2, global("m", "f") + ")R")), "m", "f"));
}

TEST(PickleMachine, each_name_is_asked_for_once) {
  InertHost host;
  const std::string stack_global =
      "\x8c\x01m\x8c\x05"
      "A.B.C\x93";
  const Value value = read_with(host, proto(4, "(" + global("m", "f") + global("m", "f") +
                                                   stack_global + stack_global + "t"));
  EXPECT_THAT(host.names, ElementsAre("m f", "m A.B.C"));
  EXPECT_EQ(value.items()[0].identity(), value.items()[1].identity());
  EXPECT_EQ(value.items()[3].global_tag(), 2);
}

TEST(PickleMachine, memo_slots_give_the_same_value_again) {
  const Value value =
      read_folded(proto(4, "(]\x94N\x94" + text("a") + "\x94" + get(2) + get(0) + get(1) + "t"));
  EXPECT_EQ(value.items()[2].identity(), value.items()[3].identity());
  EXPECT_EQ(value.items()[0].identity(), value.items()[4].identity());
  EXPECT_TRUE(value.items()[5].is_none());
}

TEST(PickleMachine, slots_by_number_count_for_memoize) {
  // Slot 5 is the first of three; MEMOIZE takes slots 1 and 2, the number of those in use.
  const Value value =
      read_folded(proto(4, "(NNN" + number(7) + put(5) + number(8) + "\x94" + number(9) + "\x94" +
                               get(1) + get(2) + get(5) + "t"));
  const auto items = value.items();
  EXPECT_EQ(items[6].as_int(), 8);
  EXPECT_EQ(items[7].as_int(), 9);
  EXPECT_EQ(items[8].as_int(), 7);
}

TEST(PickleMachine, a_list_twice_in_one_list_is_no_cycle) {
  const Value value = read_folded(proto(2, "](]" + put(0) + get(0) + "e"));
  EXPECT_EQ(value.items()[0].identity(), value.items()[1].identity());
}

TEST(PickleMachine, values_that_are_gone_do_not_count) {
  // Each BUILD folds a state of one entry away.
  class Host : public InertHost {
   public:
    Value build(Value /*object*/, Value state, bool /*shared*/) override {
      return Value::opaque(1, state.entries().size());
    }
  } host;
  const std::string one = get(0) + ")\x81}NNsb";
  const std::string stream = proto(2, "](" + global("m", "C") + put(0) + repeat(one, 1000) + "e");
  const Value value = read_with(host, stream, {.max_nodes = 2100});
  EXPECT_EQ(value.items().size(), 1001U);
  InertHost keeping;
  test::expect_error(ErrorCode::kLimitNodes, "more than 2100 values",
                     [&] { read_with(keeping, stream, {.max_nodes = 2100}); });
}

TEST(PickleMachine, a_doubling_graph_is_as_large_as_its_nodes) {
  std::string opcodes = ")" + put(0) + "\x85";
  for (std::uint8_t i = 1; i < 200; ++i) opcodes += put(i) + get(i) + "\x86";
  EXPECT_EQ(read_folded(proto(2, opcodes), {.max_nodes = 2000}).depth(), 200U);
}

// Folds objects of class Folded into records, and records the arguments of each.
class SharingHost : public InertHost {
 public:
  explicit SharingHost(bool replaces = false) : replaces_(replaces) {}
  Value build(Value object, Value state, bool shared) override {
    shared_.push_back(shared);
    if (shared && !replaces_) return PickleHost::build(std::move(object), std::move(state), shared);
    return Value::opaque(7, 42);
  }
  std::vector<bool> shared_;

 private:
  bool replaces_;
};

TEST(PickleMachine, the_host_may_replace_what_nothing_else_refers_to) {
  const std::string fresh = global("m", "C") + ")\x81";
  {
    SharingHost host;
    EXPECT_EQ(read_with(host, proto(2, fresh + put(0) + "}b")).opaque_payload(), 42U);
    EXPECT_THAT(host.shared_, ElementsAre(false));
  }
  const std::string fetched = proto(2, "(" + fresh + put(0) + "}b" + get(0) + "t");
  {
    SharingHost host;
    const Value value = read_with(host, fetched);
    EXPECT_THAT(host.shared_, ElementsAre(true));
    EXPECT_EQ(value.items()[0].identity(), value.items()[1].identity());
    EXPECT_TRUE(value.items()[0].as_object()->built);
  }
  SharingHost host(true);
  test::expect_error(ErrorCode::kBuild, "replaces an object that the stream refers to again",
                     [&] { read_with(host, fetched); });
}

TEST(PickleMachine, records_of_the_host_are_known_to_be_shared) {
  class Host : public SharingHost {
   public:
    Value new_object(const Value& /*cls*/, Value /*args*/) override { return Value::opaque(7, 42); }
    Value build(Value object, Value /*state*/, bool shared) override {
      shared_.push_back(shared);
      return object;
    }
  } host;
  const std::string fresh = global("m", "C") + ")\x81";
  const Value value =
      read_with(host, proto(2, "(" + fresh + put(0) + "}b" + fresh + "}b" + get(0) + "}bt"));
  EXPECT_THAT(host.shared_, ElementsAre(true, false, true));
  EXPECT_EQ(value.items()[2].opaque_payload(), 42U);
}

TEST(PickleMachine, the_default_host_builds_objects_only) {
  class Host : public InertHost {
   public:
    Value new_object(const Value& /*cls*/, Value /*args*/) override { return Value::opaque(7, 42); }
  } host;
  test::expect_error(ErrorCode::kBuild,
                     "BUILD at byte 10: sets the state of a record, expected an object",
                     [&] { read_with(host, proto(2, global("m", "C") + ")\x81}b")); });
}

// Gives other bytes from the second read on, like a file that is being written.
class ChangingSource : public ByteSource {
 public:
  ChangingSource(std::string before, std::string after)
      : before_(std::move(before)), after_(std::move(after)) {}
  std::uint64_t size() const override { return before_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    MemorySource(std::as_bytes(std::span(read_count_++ == 0 ? before_ : after_)))
        .read_at(offset, out);
  }

 private:
  std::string before_;
  std::string after_;
  mutable int read_count_ = 0;
};

TEST(PickleMachine, a_stream_that_changes_while_it_is_read_is_refused) {
  const std::string before = proto(2, "(N" + put(0) + get(0) + "t");
  const std::vector<std::pair<std::string, ErrorCode>> cases = {
      {proto(2, "(NNN" + get(0) + "t"), ErrorCode::kMemo},
      {proto(2, "(N" + put(1) + get(1) + "t"), ErrorCode::kMemo},
      {proto(2, "(N" + put(0) + "NPt"), ErrorCode::kOpcode},
      {proto(2, "(N" + put(0) + "X\xfft"), ErrorCode::kTruncated},
  };
  for (const auto& [after, code] : cases) {
    test::FoldingHost host;
    const ChangingSource source(before, after);
    test::expect_error(code, "at byte", [&] { read_pickle(source, host); });
  }
}

TEST(PickleMachine, errors_of_the_host_name_the_opcode) {
  class Host : public InertHost {
   public:
    Value reduce(const Value& /*callable*/, Value /*args*/) override {
      throw Error(ErrorCode::kReduce, "m.f takes 1 argument");
    }
  } host;
  test::expect_error(ErrorCode::kReduce, "REDUCE at byte 8: m.f takes 1 argument",
                     [&] { read_with(host, proto(2, global("m", "f") + ")R")); });
}

TEST(PickleMachine, pickles_that_follow_each_other_are_read_one_by_one) {
  const std::string stream =
      "junk" + proto(2, number(1)) + proto(4, "\x95\x03\0\0\0\0\0\0\0"s + number(2)) + "more";
  const MemorySource source(std::as_bytes(std::span(stream)));
  test::FoldingHost host;
  std::uint64_t offset = 4;
  EXPECT_EQ(read_pickle_prefix(source, offset, host).as_int(), 1);
  EXPECT_EQ(offset, 9U);
  EXPECT_EQ(read_pickle_prefix(source, offset, host).as_int(), 2);
  EXPECT_EQ(offset, stream.size() - 4);
  test::expect_error(ErrorCode::kProto, "pickle begins with 0x6d at byte 23",
                     [&] { read_pickle_prefix(source, offset, host); });
  EXPECT_EQ(offset, stream.size() - 4);
  offset = stream.size();
  test::expect_error(ErrorCode::kTruncated, "no pickle begins at byte 27",
                     [&] { read_pickle_prefix(source, offset, host); });
}

// Three megabytes of every kind of argument, so that each of them crosses the end of a block
// somewhere.
std::string long_stream() {
  std::string opcodes = "](";
  for (std::uint64_t i = 0; opcodes.size() < 3'000'000; ++i) {
    opcodes += text(std::string(i % 37, 'a')) + "J" + little_endian(i, 4) + "M" +
               little_endian(i & 0xFFFFU, 2) + "G" + little_endian(i, 8) + "\x8a\x03" +
               little_endian(i & 0x7FFFFFU, 3) + global("mod", "name") + "C\x03xyz" + "r" +
               little_endian(2 * i, 4) + "N" + "r" + little_endian(2 * i + 1, 4) + "j" +
               little_endian(2 * i, 4);
  }
  return opcodes + text(std::string(2'500'000, 'b')) + "e";
}

TEST(PickleMachine, streams_of_many_blocks_are_read_at_every_alignment) {
  const std::string opcodes = long_stream();
  const Value expected = read_folded(proto(2, opcodes));
  EXPECT_EQ(expected.items().back().as_string()->size(), 2'500'000U);
  for (std::uint64_t shift = 1; shift < 90; shift += 7) {
    const std::string stream = std::string(shift, 'j') + proto(2, opcodes);
    test::FoldingHost host;
    std::uint64_t offset = shift;
    const Value value =
        read_pickle_prefix(MemorySource(std::as_bytes(std::span(stream))), offset, host);
    EXPECT_EQ(test::difference(value, expected), "") << "shift " << shift;
    EXPECT_EQ(offset, stream.size());
  }
}

TEST(PickleMachine, errors_beyond_the_first_block_name_their_byte) {
  const std::string stream =
      proto(2, repeat(text("abc") + put(0), 1) + repeat("N", 3'000'000) + get(1));
  test::expect_error(ErrorCode::kMemo, "BINGET at byte 3000012: memo slot 1 is not defined",
                     [&] { read_folded(stream); });
  const std::string cut = "\x80\x02(" + repeat("N", 3'000'000) + "X\xff\xff\0\0"s;
  test::expect_error(
      ErrorCode::kTruncated,
      "BINUNICODE at byte 3000003: needs 65535 bytes at byte 3000008, but only 0 remain",
      [&] { read_folded(cut); });
}

TEST(PickleMachine, large_dicts_are_searched_for_duplicates) {
  std::string opcodes = "}(";
  for (std::uint64_t i = 0; i < 100'000; ++i) opcodes += text("key" + std::to_string(i)) + "N";
  EXPECT_EQ(read_folded(proto(2, opcodes + "u")).entries().size(), 100'000U);
  test::expect_error(ErrorCode::kKey, "the key 'key777' occurs twice",
                     [&] { read_folded(proto(2, opcodes + text("key777") + "Nu")); });
}

}  // namespace
}  // namespace fsdp::formats
