// SPDX-License-Identifier: Apache-2.0
#include "formats/container/pickle_machine.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/error.h"
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
using test::repeat;
using test::text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_literals;  // NOLINT(google-build-using-namespace): streams hold NUL

Value read_with(PickleHost& host, std::string_view pickle, const PickleLimits& limits = {}) {
  return read_pickle(MemorySource(std::as_bytes(std::span(pickle))), host, limits);
}

// Accepts every name and keeps all as it is.
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

struct Broken {
  std::string name;
  std::string pickle;
  ErrorCode code;
  std::string fragment;
};

void expect_broken(const std::vector<Broken>& cases) {
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.name);
    test::expect_error(broken.code, broken.fragment, [&] { read_folded(broken.pickle); });
  }
}

TEST(PickleMachine, broken_framing_is_refused) {
  const auto frame = [](std::uint64_t length) { return "\x95" + little_endian(length, 8); };
  expect_broken({
      {"empty", "", ErrorCode::kEmpty, "pickle is empty"},
      {"no STOP", "\x80\x02N", ErrorCode::kTruncated, "pickle ends at byte 3 without STOP"},
      {"only PROTO", "\x80\x02", ErrorCode::kTruncated, "pickle ends at byte 2 without STOP"},
      {"PROTO without version", "\x80", ErrorCode::kTruncated,
       "PROTO at byte 0: needs 1 bytes at byte 1, but only 0 remain"},
      {"bytes behind", proto(2, "N") + "abc", ErrorCode::kTrailing,
       "3 bytes follow the end of the pickle at byte 4"},
      {"two pickles", proto(2, "N") + proto(2, "N"), ErrorCode::kTrailing, "4 bytes follow"},
      {"two framed pickles", proto(4, frame(2) + "N") + proto(4, frame(2) + "N"),
       ErrorCode::kTrailing, "13 bytes follow"},
      {"protocol 0", "N.", ErrorCode::kProto, "pickle begins with 0x4e at byte 0, expected PROTO"},
      {"protocol 1", proto(1, "N"), ErrorCode::kProto, "protocol 1 is none of 2 to 5"},
      {"protocol 6", proto(6, "N"), ErrorCode::kProto, "protocol 6 is none of 2 to 5"},
      {"PROTO twice", proto(2, "\x80\x02N"), ErrorCode::kProto,
       "PROTO at byte 2: PROTO stands only at the beginning"},
      {"frame in protocol 2", proto(2, frame(2) + "N"), ErrorCode::kFrame,
       "protocol 2 has no frames"},
      {"frame too long", proto(4, frame(3) + "N"), ErrorCode::kFrame,
       "STOP at byte 12: the pickle ends, but its frame goes on to byte 14"},
      {"frame beyond any file", proto(4, frame(UINT64_MAX) + "N"), ErrorCode::kFrame,
       "is beyond any file"},
      {"frame of 2^63 bytes", proto(4, frame(1ULL << 63U) + "N"), ErrorCode::kFrame,
       "goes on to byte 9223372036854775819"},
      {"frame inside a frame", proto(4, frame(20) + frame(2) + "N"), ErrorCode::kFrame,
       "FRAME at byte 11: begins inside the frame that ends at byte 31"},
      {"opcode across the end", proto(4, frame(2) + text("abc")), ErrorCode::kFrame,
       "BINUNICODE at byte 11: crosses the end of its frame at byte 13"},
  });
}

TEST(PickleMachine, frames_that_fit_are_read) {
  const auto frame = [](std::uint64_t length) { return "\x95" + little_endian(length, 8); };
  EXPECT_EQ(*read_folded(proto(4, frame(0) + frame(8) + text("abc") + frame(1))).as_string(),
            "abc");
  // Python writes large strings outside of any frame.
  EXPECT_EQ(read_folded(proto(4, frame(1) + "]" + text("abc") + frame(2) + "a")).items().size(),
            1U);
}

TEST(PickleMachine, lengths_are_checked_before_anything_is_allocated) {
  expect_broken({
      {"BINUNICODE", proto(2, "X\xff\xff\xff\x7f"s + "abc"), ErrorCode::kTruncated,
       "BINUNICODE at byte 2: needs 2147483647 bytes at byte 7, but only 4 remain"},
      {"BINUNICODE8", proto(4, "\x8d" + little_endian(1ULL << 63U, 8)), ErrorCode::kTruncated,
       "needs 9223372036854775808 bytes"},
      {"BINBYTES8", proto(4, "\x8e" + little_endian(UINT64_MAX, 8)), ErrorCode::kTruncated,
       "needs 18446744073709551615 bytes"},
      {"BYTEARRAY8", proto(5, "\x96" + little_endian(1ULL << 40U, 8)), ErrorCode::kTruncated,
       "BYTEARRAY8 at byte 2"},
      {"BINSTRING", proto(2, "T\xff\xff\xff\xff"), ErrorCode::kIntRange,
       "BINSTRING at byte 2: its length is negative: -1"},
      {"LONG4", proto(2, "\x8b\0\0\0\x80"s), ErrorCode::kIntRange,
       "LONG4 at byte 2: its length is negative: -2147483648"},
      {"LONG4 short", proto(2, "\x8b\xff\xff\xff\x7f"s), ErrorCode::kTruncated, "LONG4 at byte 2"},
      {"LONG4 long", proto(2, "\x8b" + little_endian(70000, 4) + std::string(70000, '\x01')),
       ErrorCode::kIntRange, "an int of 70000 bytes"},
      {"LONG1 short",
       proto(2,
             "\x8a\x09"
             "abc"),
       ErrorCode::kTruncated, "LONG1 at byte 2"},
      {"GLOBAL without newline",
       "\x80\x02"
       "cmodule",
       ErrorCode::kTruncated, "GLOBAL at byte 2: the name at byte 3 has no end"},
      {"GLOBAL without end", proto(2, "c" + std::string(5000, 'x') + "\nf\n"), ErrorCode::kGlobal,
       "the name at byte 3 is longer than 4096 bytes"},
  });
}

TEST(PickleMachine, opcodes_that_data_does_not_need_are_refused_by_name) {
  const std::map<std::string, std::string> refused = {
      {"I1\n", "INT (0x49)"},
      {"L1L\n", "LONG (0x4c)"},
      {"F1\n", "FLOAT (0x46)"},
      {"S'a'\n", "STRING (0x53)"},
      {"Va\n", "UNICODE (0x56)"},
      {"(l", "LIST (0x6c)"},
      {"(d", "DICT (0x64)"},
      {"N0", "POP (0x30)"},
      {"(1", "POP_MARK (0x31)"},
      {"N2", "DUP (0x32)"},
      {"Np0\n", "PUT (0x70)"},
      {"g0\n", "GET (0x67)"},
      {"(im\nc\n", "INST (0x69)"},
      {"(o", "OBJ (0x6f)"},
      {"P1\n", "PERSID (0x50)"},
      {"\x82\x01", "EXT1 (0x82)"},
      {"\x83\x01\x01", "EXT2 (0x83)"},
      {"\x84\x01\x01\x01\x01", "EXT4 (0x84)"},
      {"\x92", "NEWOBJ_EX (0x92)"},
      {"\x97", "NEXT_BUFFER (0x97)"},
      {"\x98", "READONLY_BUFFER (0x98)"},
  };
  for (const auto& [opcodes, name] : refused) {
    const std::size_t at = opcodes.find_first_not_of("(N");
    test::expect_error(ErrorCode::kOpcode,
                       "opcode " + name + " at byte " + std::to_string(2 + at) + " is not accepted",
                       [&, &stream = opcodes] { read_folded(proto(2, stream)); });
  }
  test::expect_error(ErrorCode::kOpcode, "0xff at byte 2 is no pickle opcode",
                     [] { read_folded(proto(2, "\xff")); });
}

TEST(PickleMachine, all_256_opcode_bytes_are_read_or_refused) {
  for (int byte = 0; byte < 256; ++byte) {
    for (const std::string& before : {""s, "N"s, "NN"s, "("s, "](N"s}) {
      try {
        read_folded(proto(4, before + static_cast<char>(byte) + "\x01\0\0\0\0\0\0\0\0"s));
      } catch (const Error&) {
      }
    }
  }
}

TEST(PickleMachine, names_that_python_could_not_have_are_refused) {
  expect_broken({
      {"empty module", proto(2, global("", "f")), ErrorCode::kGlobal,
       "GLOBAL at byte 2: module '' and name 'f' are no names"},
      {"empty name", proto(2, global("m", "")), ErrorCode::kGlobal, "name ''"},
      {"name of dots", proto(2, global("m", "a..b")), ErrorCode::kGlobal, "name 'a..b'"},
      {"not UTF-8", proto(2, global("m", "\xff")), ErrorCode::kGlobal, "name '\\xff'"},
      {"carriage return", proto(2, global("m", "f\r")), ErrorCode::kGlobal, "name 'f\\x0d'"},
      {"newline",
       proto(4,
             "\x8c\x01m\x8c\x03"
             "a\nb\x93"),
       ErrorCode::kGlobal, "STACK_GLOBAL at byte 10"},
      {"number as name", proto(4, "\x8c\x01mK\x01\x93"), ErrorCode::kGlobal,
       "names a global by a str and a int, expected two str"},
      {"bytes as module",
       proto(4,
             "C\x01m\x8c\x01"
             "f\x93"),
       ErrorCode::kGlobal, "by a bytes and a str"},
      {"underflow", proto(4, "\x8c\x01m\x93"), ErrorCode::kStack,
       "STACK_GLOBAL at byte 5: takes 2 values, but 1 stand on the stack"},
  });
}

TEST(PickleMachine, a_name_that_the_host_refuses_is_reported_with_its_place) {
  class RefusingHost : public PickleHost {
   public:
    std::int32_t global(std::string_view module, std::string_view name) override {
      throw Error(ErrorCode::kGlobal,
                  "global '" + std::string(module) + "." + std::string(name) + "' is not allowed");
    }
  } host;
  test::expect_error(
      ErrorCode::kGlobal, "GLOBAL at byte 2: global 'os.system' is not allowed",
      [&] { read_with(host, proto(2, global("os", "system") + text("ls") + "\x85R")); });
}

TEST(PickleMachine, broken_memo_use_is_refused) {
  expect_broken({
      {"undefined", proto(2, get(0)), ErrorCode::kMemo,
       "BINGET at byte 2: memo slot 0 is not defined"},
      {"undefined long", proto(2, "Nj\xff\xff\xff\xff"), ErrorCode::kMemo,
       "LONG_BINGET at byte 3: memo slot 4294967295 is not defined"},
      {"before it is put", proto(2, "(" + get(0) + "N" + put(0) + "t"), ErrorCode::kMemo,
       "slot 0 is not defined"},
      {"put twice", proto(2, "N" + put(0) + put(0)), ErrorCode::kMemo,
       "BINPUT at byte 5: memo slot 0 is in use already"},
      {"put and memoized", proto(4, "N" + put(1) + "\x94"), ErrorCode::kMemo,
       "MEMOIZE at byte 5: memo slot 1 is in use already"},
      {"huge slot", proto(2, "Nr\xff\xff\xff\xff"), ErrorCode::kMemo,
       "LONG_BINPUT at byte 3: memo slot 4294967295 is out of order: only 0 are in use"},
      {"put of nothing", proto(2, put(0)), ErrorCode::kStack,
       "BINPUT at byte 2: takes 1 value, but 0 stand on the stack"},
      {"put of a mark", proto(2, "N(" + put(0)), ErrorCode::kStack,
       "but 0 stand above the last MARK"},
  });
}

TEST(PickleMachine, broken_stack_use_is_refused) {
  expect_broken({
      {"STOP on nothing", proto(2, ""), ErrorCode::kStack, "ends with 0 values on the stack"},
      {"two values", proto(2, "NN"), ErrorCode::kStack,
       "STOP at byte 4: the pickle ends with 2 values on the stack, expected 1"},
      {"open mark", proto(2, "N("), ErrorCode::kStack, "ends with an open MARK"},
      {"TUPLE2", proto(2, "N\x86"), ErrorCode::kStack,
       "TUPLE2 at byte 3: takes 2 values, but 1 stand on the stack"},
      {"TUPLE1 over a mark", proto(2, "N(\x85"), ErrorCode::kStack,
       "takes 1 value, but 0 stand above the last MARK"},
      {"TUPLE", proto(2, "t"), ErrorCode::kStack, "TUPLE at byte 2: there is no MARK on the stack"},
      {"APPENDS", proto(2, "]e"), ErrorCode::kStack, "APPENDS at byte 3: there is no MARK"},
      {"APPENDS to nothing", proto(2, "(Ne"), ErrorCode::kStack,
       "there is no container below the MARK"},
      {"APPENDS across a mark", proto(2, "]((Ne"), ErrorCode::kStack,
       "there is no container below the MARK"},
      {"FROZENSET", proto(4, "\x91"), ErrorCode::kStack, "there is no MARK"},
      {"odd SETITEMS", proto(2, "}(Nu"), ErrorCode::kStack,
       "SETITEMS at byte 5: an odd number of keys and values: 1"},
      {"REDUCE", proto(2, ")R"), ErrorCode::kStack, "REDUCE at byte 3: takes 2 values"},
      {"BUILD", proto(2, "Nb"), ErrorCode::kStack, "BUILD at byte 3"},
      {"APPEND", proto(2, "]a"), ErrorCode::kStack, "APPEND at byte 3"},
      {"SETITEM", proto(2, "}Ns"), ErrorCode::kStack, "SETITEM at byte 4"},
      {"BINPERSID", proto(2, "Q"), ErrorCode::kStack, "BINPERSID at byte 2"},
  });
}

TEST(PickleMachine, values_of_the_wrong_kind_are_refused) {
  expect_broken({
      {"APPEND to a dict", proto(2, "}Na"), ErrorCode::kType,
       "APPEND at byte 4: appends to a dict, expected a list"},
      {"APPENDS to a tuple", proto(2, ")(Ne"), ErrorCode::kType, "appends to a tuple"},
      {"SETITEM on a list", proto(2, "]NNs"), ErrorCode::kType,
       "SETITEM at byte 5: sets items of a list, expected a dict"},
      {"SETITEMS on a str", proto(2, text("a") + "(NNu"), ErrorCode::kType, "sets items of a str"},
      {"ADDITEMS to a list", proto(4, "](N\x90"), ErrorCode::kType,
       "ADDITEMS at byte 5: adds items to a list, expected a set"},
      {"ADDITEMS to a frozenset", proto(4, "(\x91(N\x90"), ErrorCode::kType,
       "adds items to a frozenset"},
      {"APPEND after BUILD", proto(2, global("m", "C") + ")\x81}bNa"), ErrorCode::kType,
       "appends to an object that has its state"},
      {"arguments no tuple", proto(2, global("m", "f") + "]R"), ErrorCode::kReduce,
       "REDUCE at byte 8: the arguments are a list, expected a tuple"},
      {"NEWOBJ of a str", proto(2, text("C") + ")\x81"), ErrorCode::kReduce,
       "NEWOBJ at byte 9: a str cannot be called"},
      {"BUILD on a dict", proto(2, "}}b"), ErrorCode::kBuild,
       "BUILD at byte 4: sets the state of a dict, expected an object"},
      {"BUILD on a global", proto(2, global("m", "C") + "}b"), ErrorCode::kBuild, "of a global"},
      {"BUILD twice", proto(2, global("m", "C") + ")\x81}b}b"), ErrorCode::kBuild,
       "for the second time"},
      {"persistent id", proto(2, text("module") + "\x85Q"), ErrorCode::kPersid,
       "BINPERSID at byte 14: a persistent id 'module' has no meaning here"},
      {"not UTF-8", proto(2, text("a\xff")), ErrorCode::kUtf8,
       "BINUNICODE at byte 2: the str 'a\\xff' is not UTF-8"},
  });
}

TEST(PickleMachine, keys_that_python_refuses_are_refused) {
  expect_broken({
      {"list", proto(2, "}]Ns"), ErrorCode::kKey, "SETITEM at byte 5: a list cannot be a key"},
      {"dict", proto(2, "}}Ns"), ErrorCode::kKey, "a dict cannot be a key"},
      {"list in a tuple", proto(2, "}]\x85Ns"), ErrorCode::kKey, "a tuple cannot be a key"},
      {"set in a set", proto(4, "\x8f(\x8f\x90"), ErrorCode::kKey, "a set cannot be a key"},
      {"bytearray", proto(5, "(\x96\0\0\0\0\0\0\0\0\x91"s), ErrorCode::kKey,
       "a bytearray cannot be a key"},
      {"str twice", proto(2, "}(" + text("a") + "N" + text("a") + "Nu"), ErrorCode::kKey,
       "SETITEMS at byte 18: the key 'a' occurs twice"},
      {"int twice", proto(2, "}" + number(1) + "Ns" + number(1) + "Ns"), ErrorCode::kKey,
       "the key 1 occurs twice"},
      {"True and 1", proto(2, "}(\x88NK\x01Nu"), ErrorCode::kKey, "the key 1 occurs twice"},
      {"in an OrderedDict", proto(2, global("collections", "OrderedDict") + ")R(NNNNu"),
       ErrorCode::kKey, "the key occurs twice"},
  });
  // Frozen sets and tuples of hashable values can be keys.
  EXPECT_EQ(read_folded(proto(4, "}((N\x91N\x85\x86Nu")).entries().size(), 1U);
}

TEST(PickleMachine, values_that_hold_themselves_are_refused) {
  const std::string object = global("m", "C") + ")\x81" + put(0);
  expect_broken({
      {"list", proto(2, "]" + put(0) + get(0) + "a"), ErrorCode::kCycle,
       "APPEND at byte 7: would change a list that is referred to already"},
      {"dict", proto(2, "}" + put(0) + "N" + get(0) + "s"), ErrorCode::kCycle, "change a dict"},
      {"list through a tuple",
       proto(2, "]" + put(0) + "(" + get(0) +
                    "\x85"
                    "e"),
       ErrorCode::kCycle, "change a list"},
      {"object in its state", proto(2, object + "}N" + get(0) + "sb"), ErrorCode::kCycle,
       "BUILD at byte 16: would change a object"},
      {"object in its items", proto(2, object + get(0) + "a"), ErrorCode::kCycle,
       "change a object"},
      {"set", proto(4, "\x8f" + put(0) + "(" + get(0) + "\x90"), ErrorCode::kCycle, "change a set"},
      {"change after it is held", proto(2, "(]" + put(0) + "\x85" + get(0) + "Nat"),
       ErrorCode::kCycle, "change a list"},
  });
}

TEST(PickleMachine, limits_are_named) {
  expect_broken({
      {"a million tuples", proto(2, ")" + repeat("\x85", 1'000'000)), ErrorCode::kLimitDepth,
       "nested more than 1000 levels deep"},
      {"a million lists", proto(2, repeat("]", 1'000'000) + repeat("a", 999'999)),
       ErrorCode::kLimitDepth, "more than 1000 levels"},
      {"a million marks", proto(2, repeat("(", 1'000'000)), ErrorCode::kLimitDepth, "MARK at byte"},
      {"deep in a call", proto(2, ")" + repeat("\x85", 1'000) + global("m", "f") + ")R"),
       ErrorCode::kStack, "2 values"},
  });
  const auto with = [](const PickleLimits& limits, const std::string& opcodes) {
    return [=] { read_folded(proto(2, opcodes), limits); };
  };
  EXPECT_EQ(read_folded(proto(2, ")" + repeat("\x85", 1'000))).depth(), 1'000U);
  with({.max_depth = 3}, "N\x85\x85\x85")();
  test::expect_error(ErrorCode::kLimitDepth, "more than 3 levels",
                     with({.max_depth = 3}, "N\x85\x85\x85\x85"));
  with({.max_nodes = 100}, "](" + repeat("N", 90) + "e")();
  test::expect_error(ErrorCode::kLimitNodes, "more than 100 values",
                     with({.max_nodes = 100}, "](" + repeat("N", 110) + "e"));
  test::expect_error(ErrorCode::kLimitNodes, "more than 100 values",
                     with({.max_nodes = 100}, repeat("N", 200)));
  test::expect_error(ErrorCode::kLimitNodes, "more than 100 values",
                     with({.max_nodes = 100}, "](" + repeat("]", 60) + "e"));
  with({.max_string_bytes = 4}, text("abcd"))();
  test::expect_error(ErrorCode::kLimitSize, "a str of 5 bytes; at most 4 are read",
                     with({.max_string_bytes = 4}, text("abcde")));
  test::expect_error(ErrorCode::kLimitSize,
                     "SHORT_BINSTRING at byte 2: a str of 5 bytes; at most 4 are read",
                     with({.max_string_bytes = 4},
                          "U\x05"
                          "abcde"));
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

// Folds objects of class Folded into records, and says what it was told of each.
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
  test::expect_error(ErrorCode::kBuild,
                     "the host replaces an object that the stream refers to again",
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

// Gives other bytes from the second read on, as a file does that is written meanwhile.
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

// Three megabytes of every kind of argument, so that each of them meets the end of a block
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
