// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/finding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

TEST(Finding, text_puts_file_and_key_in_front) {
  EXPECT_EQ(
      finding_text(
          {.code = ErrorCode::kHole, .message = "no chunk", .file = "a", .key = "w", .bytes = {}}),
      "a: 'w': no chunk");
  EXPECT_EQ(
      finding_text(
          {.code = ErrorCode::kHole, .message = "no chunk", .file = {}, .key = {}, .bytes = {}}),
      "no chunk");
}

TEST(Finding, names_from_files_are_escaped) {
  EXPECT_EQ(finding_text({.code = ErrorCode::kHole,
                          .message = "m",
                          .file = "a\x1b[2J",
                          .key = "k\n",
                          .bytes = {}}),
            "a\\x1b[2J: 'k\\x0a': m");
}

TEST(Finding, damage_throws_with_the_first_and_the_number_of_the_others) {
  Findings findings = {
      {.code = ErrorCode::kExtraFile,
       .message = "extra",
       .file = {},
       .key = {},
       .bytes = {},
       .severity = Finding::Severity::kWarning},
      {.code = ErrorCode::kHole, .message = "first", .file = {}, .key = "w", .bytes = {}},
      {.code = ErrorCode::kOverlap, .message = "second", .file = {}, .key = {}, .bytes = {}}};
  try {
    throw_if_damaged(findings, "ck");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kHole);
    EXPECT_THAT(error.what(), testing::StartsWith("ck: 'w': first; and 1 more"));
  }
  findings[1].severity = Finding::Severity::kUnknown;
  findings[2].severity = Finding::Severity::kUnsafe;
  try {
    throw_if_damaged(findings, "ck");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "ck: second");
  }
  findings.resize(2);
  EXPECT_NO_THROW(throw_if_damaged(findings, "ck"));
}

TEST(Finding, a_name_outside_the_lists_is_unsafe_and_other_errors_are_damage) {
  EXPECT_EQ(severity_of(ErrorCode::kGlobal), Finding::Severity::kUnsafe);
  EXPECT_EQ(severity_of(ErrorCode::kZipCrc), Finding::Severity::kDamage);
  EXPECT_EQ(severity_of(ErrorCode::kUnsupported), Finding::Severity::kDamage);
}

TEST(Finding, every_severity_has_its_word) {
  EXPECT_EQ(severity_name(Finding::Severity::kDamage), "damage");
  EXPECT_EQ(severity_name(Finding::Severity::kUnsafe), "unsafe");
  EXPECT_EQ(severity_name(Finding::Severity::kUnknown), "unknown");
  EXPECT_EQ(severity_name(Finding::Severity::kWarning), "warning");
}

}  // namespace
}  // namespace fsdp::formats
