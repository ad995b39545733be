// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/xml.h"

#include <sys/mman.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include <climits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using test::expect_error;
using testing::ElementsAre;
using testing::Pair;

struct XmlRecord {
  std::vector<std::string> begun;
  std::vector<std::pair<std::string, std::string>> ended;
};

XmlRecord record_of(std::string_view document) {
  XmlRecord record;
  parse_xml(document, {[&](std::string_view path) { record.begun.emplace_back(path); },
                       [&](std::string_view path, const std::string& text) {
                         record.ended.emplace_back(path, text);
                       }});
  return record;
}

std::vector<std::pair<std::string, std::string>> ends_of(std::string_view document) {
  return record_of(document).ended;
}

void refuses_xml(std::string_view document, std::string_view symptom) {
  expect_error(ErrorCode::kNetwork, symptom, [&] { ends_of(document); });
}

std::string nested(int depth) {
  std::string out;
  for (int i = 0; i < depth; ++i) out += "<a>";
  for (int i = 0; i < depth; ++i) out += "</a>";
  return out;
}

TEST(Xml, tells_elements_with_their_paths_and_texts) {
  const XmlRecord record = record_of(
      "<?xml version=\"1.0\"?>\n<s:a xmlns:s=\"u\" t='1'>x<b>1</b>y<s:c/><!-- z --></s:a>\n");
  EXPECT_THAT(record.begun, ElementsAre("a", "a/b", "a/c"));
  EXPECT_THAT(record.ended, ElementsAre(Pair("a/b", "1"), Pair("a/c", ""), Pair("a", "xy")));
}

TEST(Xml, decodes_what_text_may_be_written_as) {
  EXPECT_THAT(ends_of("<a>&lt;&amp;&gt;&quot;&apos;&#65;&#x20AC;</a>"),
              ElementsAre(Pair("a", "<&>\"'A\xE2\x82\xAC")));
  EXPECT_THAT(ends_of("<a>1<![CDATA[<b>&lt;]]>2</a>"), ElementsAre(Pair("a", "1<b>&lt;2")));
  EXPECT_THAT(ends_of("<?xml version='1.0' encoding='ISO-8859-1'?><a>\xE4</a>"),
              ElementsAre(Pair("a", "\xC3\xA4")));
  EXPECT_THAT(ends_of("\xEF\xBB\xBF<a/>"), ElementsAre(Pair("a", "")));
}

TEST(Xml, refuses_what_is_not_well_formed) {
  for (const std::string_view document : {"",
                                          " ",
                                          "text",
                                          "{}",
                                          "<",
                                          "<a",
                                          "<a>",
                                          "<a></b>",
                                          "<a/><b/>",
                                          "<a>&none;</a>",
                                          "<a>&#0;</a>",
                                          "<a>&#xD800;</a>",
                                          "<a b=1/>",
                                          "<a b='1' b='2'/>",
                                          "<a><![CDATA[</a>",
                                          "<a><!-- </a>",
                                          "<a>\xFF</a>",
                                          "<a>\xC3</a>",
                                          "<a>]]></a>",
                                          "<1/>",
                                          "</a>",
                                          "<?xml version='1.0' encoding='none'?><a/>",
                                          "<?xml version='1.0' encoding='UTF-16'?><a/>",
                                          "<html><br></html>"}) {
    refuses_xml(document, "the answer is XML that is not well-formed: ");
  }
  refuses_xml(std::string_view("<a>\0</a>", 8), "that is not well-formed");
}

TEST(Xml, every_truncation_of_a_document_is_refused) {
  const std::string document =
      "<?xml version=\"1.0\"?><L><C><K>a&amp;b</K><![CDATA[x]]></C><!--y--></L>";
  EXPECT_EQ(ends_of(document).size(), 3U);
  for (std::size_t size = 0; size < document.size(); ++size) {
    refuses_xml(std::string_view(document).substr(0, size), "that is not well-formed");
  }
}

TEST(Xml, a_document_type_is_refused_before_it_defines_anything) {
  constexpr std::string_view kSymptom = "the answer is XML with a document type";
  refuses_xml("<!DOCTYPE a><a/>", kSymptom);
  refuses_xml("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>", kSymptom);
  refuses_xml("<!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><a>&e;</a>", kSymptom);
  // Each entity is ten of the one before: 10^9 characters.
  std::string laughs = "<!DOCTYPE a [<!ENTITY e0 'haha'>";
  for (int i = 1; i < 10; ++i) {
    laughs += "<!ENTITY e" + std::to_string(i) + " '";
    for (int j = 0; j < 10; ++j) laughs += "&e" + std::to_string(i - 1) + ";";
    laughs += "'>";
  }
  refuses_xml(laughs + "]><a>&e9;</a>", kSymptom);
}

TEST(Xml, depth_is_bounded) {
  EXPECT_EQ(ends_of(nested(16)).size(), 16U);
  refuses_xml(nested(17), "the answer is XML with elements more than 16 deep");
  refuses_xml(nested(200'000), "the answer is XML with elements more than 16 deep");
}

TEST(Xml, names_are_bounded) {
  const std::string name(256, 'n');
  EXPECT_THAT(ends_of("<" + name + "/>"), ElementsAre(Pair(name, "")));
  refuses_xml("<n" + name + "/>", "the answer is XML with a name of 257 bytes");
}

TEST(Xml, the_text_of_an_element_is_bounded) {
  const std::string most(std::size_t{64} << 10U, 'x');
  EXPECT_EQ(ends_of("<a>" + most + "</a>").front().second.size(), most.size());
  refuses_xml("<a><b>" + most + "x</b></a>", "with text of more than 64.0 KiB in 'a/b'");
  // Pieces count together, and those of other elements do not.
  refuses_xml("<a>" + most + "<b/>x</a>", "with text of more than 64.0 KiB in 'a'");
  EXPECT_EQ(ends_of("<a>" + most + "<b>" + most + "</b></a>").size(), 2U);
}

TEST(Xml, many_elements_are_told_one_by_one) {
  std::string document = "<a>";
  for (int i = 0; i < 50'000; ++i) document += "<b/>";
  EXPECT_EQ(ends_of(document + "</a>").size(), 50'001U);
}

TEST(Xml, a_document_beyond_two_gib_is_refused_unread) {
  const std::size_t size = std::size_t{INT_MAX} + 1;
  void* memory =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  refuses_xml({static_cast<const char*>(memory), size}, "the answer is XML of 2147483648 bytes");
  ::munmap(memory, size);
}

TEST(Xml, what_the_handler_throws_ends_the_run) {
  int calls = 0;
  const auto begin = [&](std::string_view path) {
    ++calls;
    if (path == "a/b") throw std::out_of_range("enough");
  };
  const auto end = [&](std::string_view, const std::string&) { ++calls; };
  EXPECT_THROW(parse_xml("<a><b/><c/></a>", {begin, end}), std::out_of_range);
  EXPECT_EQ(calls, 2);
}

TEST(Xml, functions_that_are_not_set_ignore_elements) {
  EXPECT_NO_THROW(parse_xml("<a><b/></a>", {}));
}

}  // namespace
}  // namespace fsdp::formats
