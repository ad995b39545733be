// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/writer.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/pickle_stream.h"
#include "tests/support/pickle_values.h"

namespace fsdp::formats {
namespace {

using test::global;
using test::little_endian;
using test::proto;
using test::read_folded;
using test::text;
using namespace std::string_literals;  // NOLINT(google-build-using-namespace): streams hold NUL

// Expects these opcodes for `value` between PROTO 2 and STOP, and the same value when read again.
void expect_opcodes(const Value& value, const std::string& opcodes) {
  const std::string written = write_pickle(value);
  EXPECT_EQ(::testing::PrintToString(written), ::testing::PrintToString(proto(2, opcodes)));
  EXPECT_EQ(test::difference(read_folded(written), value), "");
}

Value object(std::string module, std::string name, std::vector<Value> args) {
  ObjectData data;
  data.callable = Value::global(std::move(module), std::move(name));
  data.args = Value::tuple(std::move(args));
  return Value::object(std::move(data));
}

TEST(PickleWriter, numbers_take_the_shortest_opcode) {
  expect_opcodes(Value(), "N");
  expect_opcodes(Value::boolean(true), "\x88");
  expect_opcodes(Value::boolean(false), "\x89");
  expect_opcodes(Value::integer(0), "K\0"s);
  expect_opcodes(Value::integer(255), "K\xff");
  expect_opcodes(Value::integer(256), "M\0\x01"s);
  expect_opcodes(Value::integer(65535), "M\xff\xff");
  expect_opcodes(Value::integer(65536), "J\0\0\x01\0"s);
  expect_opcodes(Value::integer(-1), "J\xff\xff\xff\xff");
  expect_opcodes(Value::integer(INT32_MAX), "J\xff\xff\xff\x7f");
  expect_opcodes(Value::integer(INT32_MIN), "J\0\0\0\x80"s);
  expect_opcodes(Value::integer(std::int64_t{INT32_MAX} + 1), "\x8a\x05\0\0\0\x80\0"s);
  expect_opcodes(Value::integer(std::int64_t{INT32_MIN} - 1), "\x8a\x05\xff\xff\xff\x7f\xff");
  expect_opcodes(Value::integer(INT64_MAX), "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
  expect_opcodes(Value::integer(INT64_MIN), "\x8a\x08\0\0\0\0\0\0\0\x80"s);
  expect_opcodes(Value::big_int("\0\0\0\0\0\0\0\0\x40"s), "\x8a\x09\0\0\0\0\0\0\0\0\x40"s);
  expect_opcodes(Value::floating(1.5), "G\x3f\xf8\0\0\0\0\0\0"s);
  expect_opcodes(Value::floating(-std::numeric_limits<double>::infinity()),
                 "G\xff\xf0\0\0\0\0\0\0"s);
}

TEST(PickleWriter, text_is_utf8_and_bytes_are_text_in_latin_1) {
  expect_opcodes(Value::string("h\xC3\xA9"), "X\x03\0\0\0h\xC3\xA9"s);
  expect_opcodes(Value::string("\xED\xA0\x80"), "X\x03\0\0\0\xED\xA0\x80"s);
  expect_opcodes(Value::bytes(""), global("__builtin__", "bytes") + ")R");
  const std::string encoded =
      global("_codecs", "encode") + text("a\xC3\xBF") + text("latin1") + "\x86R";
  expect_opcodes(Value::bytes("a\xff"), encoded);
  expect_opcodes(Value::byte_array("a\xff"),
                 global("__builtin__", "bytearray") + encoded + "\x85R");
}

TEST(PickleWriter, containers_are_written_as_python_does) {
  const Value one = Value::integer(1);
  const std::string k = "K\x01";
  expect_opcodes(Value::tuple({}), ")");
  expect_opcodes(Value::tuple({one}), k + "\x85");
  expect_opcodes(Value::tuple({one, one}), k + k + "\x86");
  expect_opcodes(Value::tuple({one, one, one}), k + k + k + "\x87");
  expect_opcodes(Value::tuple({one, one, one, one}), "(" + k + k + k + k + "t");
  expect_opcodes(Value::list({}), "]");
  expect_opcodes(Value::list({one}), "]" + k + "a");
  expect_opcodes(Value::list({one, one}), "](" + k + k + "e");
  expect_opcodes(Value::dict({}), "}");
  expect_opcodes(Value::dict({{one, Value()}}), "}" + k + "Ns");
  expect_opcodes(Value::dict({{one, Value()}, {Value(), one}}), "}(" + k + "NN" + k + "u");
  expect_opcodes(Value::set({one}), global("__builtin__", "set") + "]" + k + "a\x85R");
  expect_opcodes(Value::frozen_set({}), global("__builtin__", "frozenset") + "]\x85R");
}

TEST(PickleWriter, large_containers_come_in_batches_of_a_thousand) {
  const auto list = [](std::size_t size) {
    return write_pickle(Value::list(std::vector<Value>(size, Value::boolean(true))));
  };
  const std::string batch = "(" + test::repeat("\x88", 1000) + "e";
  EXPECT_EQ(list(1000), proto(2, "]" + batch));
  EXPECT_EQ(list(1001), proto(2, "]" + batch +
                                     "\x88"
                                     "a"));
  EXPECT_EQ(list(2002), proto(2, "]" + batch + batch +
                                     "(\x88\x88"
                                     "e"));
  std::vector<Value::Entry> entries;
  for (std::int64_t i = 0; i < 2001; ++i) entries.emplace_back(Value::integer(i), Value());
  const Value dict = Value::dict(std::move(entries));
  EXPECT_EQ(test::difference(read_folded(write_pickle(dict)), dict), "");
}

TEST(PickleWriter, names_are_those_of_protocol_2) {
  expect_opcodes(Value::global("torch", "float32"), global("torch", "float32"));
  expect_opcodes(Value::global("builtins", "int"), global("__builtin__", "int"));
  expect_opcodes(Value::global("copyreg", "_reconstructor"), global("copy_reg", "_reconstructor"));
  const std::string getattr = global("__builtin__", "getattr");
  expect_opcodes(Value::global("m", "A.B.C"),
                 getattr + getattr + global("m", "A") + text("B") + "\x86R" + text("C") + "\x86R");
  for (const std::string& name : {""s, "a\nb"s, ".a"s, "\xff"s}) {
    test::expect_error(ErrorCode::kName, "are not Python names",
                       [&] { write_pickle(Value::global("m", name)); });
  }
}

TEST(PickleWriter, objects_get_items_entries_and_state_in_this_order) {
  ObjectData data;
  data.callable = Value::global("m", "C");
  data.args = Value::tuple({Value()});
  data.by_new = true;
  data.built = true;
  data.state = Value::dict({});
  data.list_items = {Value(), Value()};
  data.dict_items = {{Value(), Value()}};
  expect_opcodes(Value::object(std::move(data)), global("m", "C") + "N\x85\x81(NNeNNs}b");
  expect_opcodes(object("m", "f", {}), global("m", "f") + ")R");
  ObjectData without_state;
  without_state.callable = object("m", "g", {});
  without_state.args = Value::tuple({});
  without_state.built = true;
  expect_opcodes(Value::object(std::move(without_state)), global("m", "g") + ")R)RNb");
}

TEST(PickleWriter, storages_are_persistent_ids) {
  const Value floats =
      Value::storage({.key = "3", .dtype = DType::kFloat32, .numel = 300, .location = "cuda:1"});
  expect_opcodes(floats, "(" + text("storage") + global("torch", "FloatStorage") + text("3") +
                             text("cpu") + "M\x2c\x01tQ");
  const Value untyped =
      Value::storage({.key = "0", .dtype = DType::kUInt8, .untyped = true, .numel = 0});
  expect_opcodes(untyped, "(" + text("storage") + global("torch.storage", "UntypedStorage") +
                              text("0") + text("cpu") + "K\0tQ"s);
  PickleWriterOptions options;
  options.storage_key = [](const StorageRef& storage) { return "new" + storage.key; };
  EXPECT_THAT(write_pickle(floats, options), ::testing::HasSubstr(text("new3")));
  test::expect_error(ErrorCode::kDtype, "storage '1': float8_e4m3fn has no storage class", [] {
    write_pickle(Value::storage({.key = "1", .dtype = DType::kFloat8E4M3FN}));
  });
  test::expect_error(ErrorCode::kStorage, "storage '1' has more than 2^63 - 1 elements", [] {
    write_pickle(Value::storage({.key = "1", .dtype = DType::kInt8, .numel = UINT64_MAX}));
  });
}

TEST(PickleWriter, what_is_shared_is_written_once) {
  const Value list = Value::list({Value::integer(1)});
  expect_opcodes(Value::tuple({list, list}),
                 "]q\0K\x01"
                 "ah\0\x86"s);
  const Value tuple = Value::tuple({list});
  expect_opcodes(Value::list({tuple, tuple, list}),
                 "(]q\0K\x01"
                 "a\x85q\x01h\x01h\0e"s.insert(0, "]"));
  const Value made = object("m", "f", {});
  expect_opcodes(Value::tuple({made, made}), global("m", "f") + ")Rq\0h\0\x86"s);
  // Not because there are two handles to it, but because the value refers to it twice.
  expect_opcodes(list,
                 "]K\x01"
                 "a");
}

TEST(PickleWriter, equal_strings_and_names_are_written_once) {
  expect_opcodes(Value::tuple({Value::string("a"), Value::string("a")}), text("a") + "q\0h\0\x86"s);
  expect_opcodes(Value::tuple({Value::global("m", "f"), Value::global("m", "f")}),
                 global("m", "f") + "q\0h\0\x86"s);
  expect_opcodes(
      Value::tuple({Value::bytes("a"), Value::string("a")}),
      global("_codecs", "encode") + text("a") + text("latin1") + "\x86R" + text("a") + "\x86");
}

TEST(PickleWriter, slots_beyond_255_take_the_long_opcodes) {
  std::vector<Value> items;
  for (int i = 0; i < 300; ++i) {
    items.push_back(Value::string(std::to_string(i)));
    items.push_back(items.back());
  }
  const Value list = Value::list(std::move(items));
  const std::string written = write_pickle(list);
  EXPECT_THAT(written, ::testing::HasSubstr(text("255") + "q\xffh\xff"));
  EXPECT_THAT(written, ::testing::HasSubstr(text("256") + "r\0\x01\0\0j\0\x01\0\0"s));
  EXPECT_EQ(test::difference(read_folded(written), list), "");
}

TEST(PickleWriter, only_opcodes_that_weights_only_accepts_are_written) {
  constexpr std::string_view kAccepted =
      "\x80"
      "c\x81Rba"
      "esu(t\x85\x86\x87)]}N\x88\x89JKM\x8aGXQhjqr.";
  const Value shared = Value::list({Value::string("a")});
  const std::string written = write_pickle(Value::tuple(
      {Value(), Value::boolean(true), Value::boolean(false), Value::integer(70000),
       Value::integer(1LL << 40U), Value::big_int("123456789"), Value::floating(0.5),
       Value::bytes("b"), Value::byte_array("c"), shared, shared,
       Value::dict({{Value::integer(300), Value::set({Value()})}}), Value::frozen_set({Value()}),
       Value::global("m", "A.B"), object("m", "f", {Value::integer(1)}),
       Value::storage({.key = "0", .dtype = DType::kInt64})}));
  const MemorySource source(std::as_bytes(std::span(written)));
  PickleReader reader(source, 0);
  for (PickleOp op = reader.opcode(); op != PickleOp::kStop; op = reader.opcode()) {
    EXPECT_NE(kAccepted.find(static_cast<char>(op)), std::string_view::npos)
        << static_cast<int>(op);
    switch (kPickleArguments[static_cast<std::uint8_t>(op)]) {
      case PickleArgument::kByte1:
        reader.skip(1);
        break;
      case PickleArgument::kByte2:
        reader.skip(2);
        break;
      case PickleArgument::kByte4:
        reader.skip(4);
        break;
      case PickleArgument::kByte8:
        reader.skip(8);
        break;
      case PickleArgument::kLength1:
        reader.skip(reader.u8());
        break;
      case PickleArgument::kLength4:
        reader.skip(reader.u32());
        break;
      case PickleArgument::kTwoLines:
        reader.line();
        reader.line();
        break;
      default:
        break;
    }
  }
}

TEST(PickleWriter, what_protocol_2_cannot_say_is_refused) {
  test::expect_error(ErrorCode::kType, "an internal record of the reader cannot be pickled",
                     [] { write_pickle(Value::list({Value::opaque(1, 2)})); });
  test::expect_error(ErrorCode::kIntRange, "an int of 256 bytes",
                     [] { write_pickle(Value::big_int(std::string(256, '\x01'))); });
  EXPECT_EQ(write_pickle(Value::big_int(std::string(255, '\x01'))).size(), 2U + 2U + 255U + 1U);
}

TEST(PickleWriter, a_million_levels_are_written_without_recursion) {
  Value value;
  for (int i = 0; i < 1'000'000; ++i) value = Value::tuple({std::move(value)});
  const std::string written = write_pickle(value);
  EXPECT_EQ(written, proto(2, "N" + test::repeat("\x85", 1'000'000)));
  EXPECT_EQ(read_folded(written, {.max_depth = 2'000'000}).depth(), 1'000'000U);
}

TEST(PickleWriter, a_doubling_graph_is_written_in_the_size_of_its_nodes) {
  Value value = Value::list({});
  for (int i = 0; i < 1000; ++i) value = Value::tuple({value, value});
  const std::string written = write_pickle(value);
  EXPECT_LT(written.size(), 20'000U);
  EXPECT_EQ(test::difference(read_folded(written, {.max_depth = 2000}), value), "");
}

}  // namespace
}  // namespace fsdp::formats
