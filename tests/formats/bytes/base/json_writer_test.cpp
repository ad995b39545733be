// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/json_writer.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::string written(bool escaped, const std::function<void(JsonWriter&)>& write) {
  std::string out;
  JsonWriter json([&](std::string_view text) { out += text; }, escaped);
  write(json);
  return out;
}

TEST(JsonWriter, members_and_items_of_lists_begin_lines) {
  const std::string out = written(false, [](JsonWriter& json) {
    json.begin_object().member("path", "a\"b").key("list").begin_array();
    json.value(Json::Object{{"n", 1}}).begin_array().number(-2).text("x").end_array();
    json.end_array().key("none").begin_array().end_array().member("null", Json()).end_object();
  });
  EXPECT_EQ(out,
            "{\n\"path\":\"a\\\"b\",\n\"list\":[\n{\"n\":1},\n[-2,\"x\"]],\n\"none\":[],\n"
            "\"null\":null}\n");
  EXPECT_EQ(parse_json(out).find("list")->as_array()->size(), 2U);
}

TEST(JsonWriter, nothing_in_a_string_ends_a_script) {
  const std::string name = "</script><!--&\xE2\x80\xA8\xE2\x80\xA9\xE2\x82\xAC";
  const std::string out = written(true, [&](JsonWriter& json) {
    json.begin_object().member(name, Json::Array{Json(name)}).end_object();
  });
  EXPECT_EQ(out.find_first_of("<>&"), out.npos);
  EXPECT_EQ(out.find("\xE2\x80"), out.npos);
  EXPECT_EQ(*parse_json(out).find(name)->as_array()->at(0).as_string(), name);
}

}  // namespace
}  // namespace fsdp::formats
