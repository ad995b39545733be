// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/json.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;

TEST(Json, every_kind_of_value_is_read_as_what_it_is) {
  const Json json = parse_json(
      R"( {"null":null,"yes":true,"int":-7,"big":18446744073709551615,"half":0.5,"text":"a\u00e9\n","list":[1,[]],"map":{}} )");
  EXPECT_TRUE(json.find("null")->is_null());
  EXPECT_TRUE(*json.find("yes")->as_bool());
  EXPECT_EQ(*json.find("int")->as_int(), -7);
  EXPECT_EQ(std::get<std::uint64_t>(json.find("big")->storage()), UINT64_MAX);
  EXPECT_EQ(std::get<double>(json.find("half")->storage()), 0.5);
  EXPECT_EQ(*json.find("text")->as_string(), "a\xC3\xA9\n");
  EXPECT_EQ(json.find("list")->as_array()->size(), 2u);
  EXPECT_TRUE(json.find("map")->as_object()->empty());
  EXPECT_EQ(json.find("absent"), nullptr);
  EXPECT_EQ(json.find("list")->find("absent"), nullptr);
}

TEST(Json, integers_are_exact_up_to_64_bits) {
  for (const char* text : {"9223372036854775807", "-9223372036854775808", "18446744073709551615",
                           "9007199254740993", "0", "-1"}) {
    EXPECT_EQ(to_text(parse_json(text)), text);
  }
}

TEST(Json, minus_zero_is_no_integer) {
  EXPECT_EQ(parse_json("-0").as_int(), nullptr);
  EXPECT_EQ(to_text(parse_json("-0")), "-0.0");
}

TEST(Json, members_keep_their_order) {
  const std::string text = R"({"z":1,"a":{"y":2,"b":3},"m":[]})";
  EXPECT_EQ(to_text(parse_json(text)), text);
}

TEST(Json, what_is_no_json_is_refused_with_its_place) {
  const struct {
    std::string_view text;
    const char* fragment;
  } kCases[] = {
      {"", "at byte 0 (line 1, column 1): syntax error"},
      {"  ", "unexpected end of input"},
      {"{\"a\":1", "at byte 6 (line 1, column 7)"},
      {"{\n  \"a\": 1,\n}", "at byte 12 (line 3, column 1)"},
      {"[1,]", "at byte 3"},
      {"[01]", "at byte 2"},
      {"[1 2]", "expected ']'"},
      {"{} {}", "expected end of input"},
      {"nan", "invalid literal"},
      {"[Infinity]", "invalid literal"},
      {"'a'", "invalid literal"},
      {"{a:1}", "object key"},
      {"// c\n1", "invalid literal"},
      {"+1", "invalid literal"},
      {"[.5]", "invalid literal"},
      {"\"a", "missing closing quote"},
      {"\"\t\"", "control character"},
      {R"("\x41")", "forbidden character after backslash"},
      {R"("\ud800")", "surrogate"},
      {R"("\udc00")", "surrogate"},
      {"\"\xFF\"", "ill-formed UTF-8"},
      {"\"\xC0\xAF\"", "ill-formed UTF-8"},
      {"\"\xED\xA0\x80\"", "ill-formed UTF-8"},
      {"1e400", "number overflow"},
      {"[-1e400]", "number overflow"},
      {"18446744073709551616", "'18446744073709551616' at byte 0 does not fit 64 bits"},
      {"[ -9223372036854775809 ]", "'-9223372036854775809' at byte 2 does not fit 64 bits"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {std::string_view("{}\0x", 4), "at byte 2 (line 1, column 3): a NUL byte"},
      {std::string_view("\"\0\"", 3), "NUL byte"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    expect_error(ErrorCode::kJson, c.fragment, [&] { parse_json(c.text); });
  }
}

TEST(Json, a_key_that_stands_twice_in_one_object_is_refused_with_its_place) {
  expect_error(ErrorCode::kJson, "key 'a' at byte 7 (line 1, column 8)",
               [] { parse_json(R"({"a":1,"a":2})"); });
  expect_error(ErrorCode::kJson, "key '' at byte 16",
               [] { parse_json(R"({"x":[{"":1,    "":2}]})"); });
  // Spelled differently, equal as text; the escaped quote before it must not shift the position.
  expect_error(ErrorCode::kJson, "at byte 9", [] { parse_json(R"({"\"a":0,"\u0022a":0})"); });
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":{"a":[{"a":1},{"a":2}]}}})"));
}

TEST(Json, the_code_of_a_duplicate_key_is_the_callers) {
  expect_error(ErrorCode::kIndex, "'a' at byte 107", [] {
    parse_json(R"({"a":1,"a":2})", {.base_offset = 100, .duplicate_code = ErrorCode::kIndex});
  });
}

TEST(Json, depth_is_limited_and_a_hundred_thousand_brackets_are_an_error) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(128)));
  expect_error(ErrorCode::kJsonDepth, "more than 128", [&] { parse_json(nested(129)); });
  expect_error(ErrorCode::kJsonDepth, "at byte 128",
               [&] { parse_json(std::string(100'000, '[')); });
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  expect_error(ErrorCode::kJsonDepth, "more than 4",
               [&] { parse_json(objects, {.max_depth = 4}); });
}

TEST(Json, messages_stay_short_and_printable_whatever_the_text) {
  const std::string text = "[\"" + std::string(1'000'000, '\x1B') + "\"]";
  try {
    parse_json(text);
    FAIL();
  } catch (const Error& e) {
    EXPECT_LT(std::string_view(e.what()).size(), 400u);
    EXPECT_EQ(std::string_view(e.what()).find('\x1B'), std::string_view::npos);
  }
}

TEST(Json, text_with_an_indent_is_what_python_writes) {
  Json::Object map;
  map.emplace_back("a", "x.safetensors");
  Json::Object root;
  root.emplace_back("metadata", Json::Object{{"total_size", 40}});
  root.emplace_back("weight_map", std::move(map));
  root.emplace_back("list", Json::Array{1, Json::Array{}, Json::Object{}});
  EXPECT_EQ(to_text(std::move(root), 2),
            "{\n  \"metadata\": {\n    \"total_size\": 40\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"x.safetensors\"\n  },\n  \"list\": [\n    1,\n    [],\n    {}\n  ]\n}");
}

TEST(Json, doubles_round_trip_and_stay_doubles) {
  for (const double number :
       {0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, 1.7976931348623157e308, 40.0, 1e22}) {
    const Json back = parse_json(to_text(Json(number)));
    const double* read = std::get_if<double>(&back.storage());
    ASSERT_NE(read, nullptr) << to_text(Json(number));
    EXPECT_EQ(*read, number);
    EXPECT_EQ(std::signbit(*read), std::signbit(number));
  }
  EXPECT_EQ(to_text(Json(std::numeric_limits<double>::quiet_NaN())), "null");
  EXPECT_EQ(to_text(Json(-std::numeric_limits<double>::infinity())), "null");
}

TEST(Json, strings_are_escaped_and_bad_utf_8_is_replaced) {
  const struct {
    std::string text;
    const char* expected;
  } kCases[] = {
      {"a\"b\\c/", R"("a\"b\\c/")"},
      {"\b\f\n\r\t\x01\x1F\x7F", "\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\""},
      {std::string("\0", 1), R"("\u0000")"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""},
      {"a\u202E\u009B\U000E0041", R"("a\u202e\u009b\udb40\udc41")"},
      {"\xFF"
       "a\xC3",
       "\"\xEF\xBF\xBD"
       "a\xEF\xBF\xBD\""},
      {"\xED\xA0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
  };
  for (const auto& c : kCases) EXPECT_EQ(to_text(Json(c.text)), c.expected);
}

TEST(Json, large_unsigned_numbers_are_kept_and_small_ones_are_plain_integers) {
  EXPECT_NE(Json(std::uint64_t{5}).as_int(), nullptr);
  EXPECT_EQ(Json(UINT64_MAX).as_int(), nullptr);
  EXPECT_EQ(json_kind(Json(UINT64_MAX)), "an integer");
  EXPECT_EQ(json_kind(Json()), "null");
  EXPECT_EQ(json_kind(Json(Json::Object{})), "an object");
}

// Records the events that it receives.
class Recorder : public JsonHandler {
 public:
  void begin_object() override { log += '{'; }
  void end_object() override { log += '}'; }
  void begin_array() override { log += '['; }
  void end_array() override { log += ']'; }
  void key(std::string name, std::uint64_t offset) override {
    log += name + "@" + std::to_string(offset) + ":";
  }
  void value(Json scalar) override { log += to_text(scalar) + ";"; }
  void big_integer(std::string_view digits, std::uint64_t offset) override {
    log += "big " + std::string(digits) + "@" + std::to_string(offset) + ";";
  }
  std::string log;
};

TEST(JsonStream, tells_everything_in_order_with_the_places_of_keys) {
  Recorder recorder;
  parse_json_stream(R"({"a":[1,"x",99999999999999999999], "\\\"b" : {"":null}})", recorder,
                    {.base_offset = 10});
  EXPECT_EQ(recorder.log, R"({a@11:[1;"x";big 99999999999999999999@22;]\"b@45:{@56:null;}})");
}

TEST(JsonStream, what_the_handler_throws_comes_through) {
  class Refuser : public Recorder {
    void value(Json /*scalar*/) override { throw Error(ErrorCode::kStShape, "no values"); }
  };
  Refuser refuser;
  expect_error(ErrorCode::kStShape, "no values", [&] { parse_json_stream("[1]", refuser); });
}

}  // namespace
}  // namespace fsdp::formats
