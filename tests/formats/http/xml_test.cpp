// SPDX-License-Identifier: Apache-2.0
#include "formats/http/xml.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

class Record final : public XmlHandler {
 public:
  std::vector<std::string> seen;
  void begin(std::string_view path) override { seen.push_back("<" + std::string(path)); }
  void end(std::string_view path, const std::string& text) override {
    seen.push_back(std::string(path) + "=" + text);
  }
};

void refused(const std::string& document, std::string_view fragment) {
  Record record;
  test::expect_error(ErrorCode::kNetwork, fragment, [&] { parse_xml(document, record); });
}

TEST(Xml, GivesElementsWithTheirTexts) {
  Record record;
  parse_xml("<?xml version=\"1.0\"?><s:A xmlns:s='u'>x<s:B>1 &amp; &#50;</s:B>y<C/></s:A>", record);
  EXPECT_EQ(record.seen,
            (std::vector<std::string>{"<A", "<A/B", "A/B=1 & 2", "<A/C", "A/C=", "A=xy"}));
}

TEST(Xml, RefusesWhatCouldGrowOrReach) {
  refused("<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
          "with a document type");
  refused("<a>" + std::string(70'000, 'x') + "</a>", "with text of more than 64.0 KiB in 'a'");
  refused("<" + std::string(300, 'a') + "/>", "with a name of 300 bytes");
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += "<a>";
  refused(deep, "more than 16 deep");
}

TEST(Xml, RefusesWhatIsNotWellFormed) {
  for (const char* wrong :
       {"", "<a>", "<a></b>", "<a>&none;</a>", "no", "<a/><b/>", "<a>\x01</a>"}) {
    refused(wrong, "that is not well-formed");
  }
}

TEST(Xml, PassesOnWhatTheHandlerThrows) {
  class Thrower final : public XmlHandler {
   public:
    void begin(std::string_view /*path*/) override {
      throw Error(ErrorCode::kLimitEntries, "enough");
    }
    void end(std::string_view /*path*/, const std::string& /*text*/) override { ADD_FAILURE(); }
  } thrower;
  test::expect_error(ErrorCode::kLimitEntries, "enough",
                     [&] { parse_xml("<a><b/></a>", thrower); });
}

}  // namespace
}  // namespace fsdp::formats
