// SPDX-License-Identifier: Apache-2.0
// Streams that the machine refuses, with the code and the words of the error.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/machine.h"
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

TEST(PickleRefusal, broken_framing_is_refused) {
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
      {"protocol 1", proto(1, "N"), ErrorCode::kProto, "protocol 1 is outside 2 to 5"},
      {"protocol 6", proto(6, "N"), ErrorCode::kProto, "protocol 6 is outside 2 to 5"},
      {"PROTO twice", proto(2, "\x80\x02N"), ErrorCode::kProto,
       "PROTO at byte 2: PROTO is allowed only at the beginning"},
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

TEST(PickleRefusal, frames_that_fit_are_read) {
  const auto frame = [](std::uint64_t length) { return "\x95" + little_endian(length, 8); };
  EXPECT_EQ(*read_folded(proto(4, frame(0) + frame(8) + text("abc") + frame(1))).as_string(),
            "abc");
  // Python writes large strings outside of any frame.
  EXPECT_EQ(read_folded(proto(4, frame(1) + "]" + text("abc") + frame(2) + "a")).items().size(),
            1U);
}

TEST(PickleRefusal, lengths_are_checked_before_anything_is_allocated) {
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

TEST(PickleRefusal, opcodes_that_data_does_not_need_are_refused_by_name) {
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
  test::expect_error(ErrorCode::kOpcode, "0xff at byte 2 is not a pickle opcode",
                     [] { read_folded(proto(2, "\xff")); });
}

TEST(PickleRefusal, all_256_opcode_bytes_are_read_or_refused) {
  for (int byte = 0; byte < 256; ++byte) {
    for (const std::string& before : {""s, "N"s, "NN"s, "("s, "](N"s}) {
      try {
        read_folded(proto(4, before + static_cast<char>(byte) + "\x01\0\0\0\0\0\0\0\0"s));
      } catch (const Error&) {
      }
    }
  }
}

TEST(PickleRefusal, names_that_python_could_not_have_are_refused) {
  expect_broken({
      {"empty module", proto(2, global("", "f")), ErrorCode::kGlobal,
       "GLOBAL at byte 2: module '' and name 'f' are not Python names"},
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

TEST(PickleRefusal, a_name_that_the_host_refuses_is_reported_with_its_place) {
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

TEST(PickleRefusal, broken_memo_use_is_refused) {
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

TEST(PickleRefusal, broken_stack_use_is_refused) {
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

TEST(PickleRefusal, values_of_the_wrong_kind_are_refused) {
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

TEST(PickleRefusal, keys_that_python_refuses_are_refused) {
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

TEST(PickleRefusal, values_that_hold_themselves_are_refused) {
  const std::string object = global("m", "C") + ")\x81" + put(0);
  expect_broken({
      {"list", proto(2, "]" + put(0) + get(0) + "a"), ErrorCode::kCycle,
       "APPEND at byte 7: would change a list that something already refers to"},
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

TEST(PickleRefusal, limits_are_named) {
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

}  // namespace
}  // namespace fsdp::formats
