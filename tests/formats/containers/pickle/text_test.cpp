// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/text.h"

#include <string>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(PickleText, utf8_is_well_formed_but_for_lone_surrogates) {
  for (const std::string_view good :
       {"", "abc", "abcdefgh\x7f", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "longer than eight \xC3\xA9"}) {
    EXPECT_TRUE(is_python_utf8(good)) << good;
  }
  for (const std::string_view bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2g", "\xE0\x9F\xBF", "\xE1\x80",
        "\xE1\x80g", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF0\x90\x80", "\xF5\x80\x80\x80",
        "\xFF", "abcdefgh\xFF"}) {
    EXPECT_FALSE(is_python_utf8(bad)) << bad;
  }
}

TEST(PickleText, names_are_non_empty_parts_divided_by_dots) {
  for (const std::string_view good :
       {"a", "torch.nn.modules", "A.B", "_x1", "\xC3\xA9t\xC3\xA9", "a b"}) {
    EXPECT_TRUE(is_global_name(good)) << good;
  }
  for (const std::string_view bad :
       {std::string_view(""), std::string_view("."), std::string_view(".a"), std::string_view("a."),
        std::string_view("a..b"), std::string_view("a\nb"), std::string_view("a\0b", 3),
        std::string_view("a\x7f"), std::string_view("\xFF"), std::string_view("\xED\xA0\x80")}) {
    EXPECT_FALSE(is_global_name(bad)) << bad;
  }
}

}  // namespace
}  // namespace fsdp::formats
