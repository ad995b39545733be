// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/published_check.h"

#include <atomic>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/store/store.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Of git hash-object and sha256sum.
constexpr const char* kGitOfHello = "ce013625030ba8dba906f756967f9e9ca394464a";
constexpr const char* kShaOfHello =
    "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
constexpr const char* kGitOfNothing = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

PublishedFiles& listed() {
  static PublishedFiles files;
  return files;
}

std::atomic<int>& lists() {
  static std::atomic<int> count = 0;
  return count;
}

// A store that lists `listed()`, and has nothing else.
class Hub : public Store, public Publisher {
 public:
  std::optional<StoredFile> find(const std::string&) const override { return std::nullopt; }
  std::optional<std::vector<StoredEntry>> list(const std::string&) const override { return {}; }
  void read(const std::string&, const StoredFile&, std::uint64_t,
            std::span<std::byte>) const override {}
  std::optional<Content> fetch(const std::string&, std::uint64_t) const override { return {}; }
  std::unique_ptr<StoreUpload> upload(const std::string&, std::uint64_t) override { return {}; }
  void put(const std::string&, std::span<const std::byte>, bool) override {}
  void remove(const std::string&) override {}
  PublishedFiles published(const std::string& url) const override {
    ++lists();
    if (url != "hub://a") throw Error(ErrorCode::kNotFound, url);
    return listed();
  }
};

class PublishedCheck : public testing::Test {
 protected:
  PublishedCheck() {
    register_store("hub://", []() -> std::unique_ptr<Store> { return std::make_unique<Hub>(); });
    listed() = {"main",
                "0123",
                {{"b/large", 6, DigestKind::kSha256, kShaOfHello},
                 {"empty", 0, DigestKind::kGitBlob, kGitOfNothing},
                 {"small", 6, DigestKind::kGitBlob, kGitOfHello}},
                "hf download a ",
                ""};
    fs::create_directory(folder_ / "b");
    write_file(folder_ / "b/large", "hello\n");
    write_file(folder_ / "empty", "");
    write_file(folder_ / "small", "hello\n");
    lists() = 0;
  }
  PublishedReport report(const VerifyOptions& options = {}) const {
    return PublishedComparison("hub://a/", *options.team).compare(folder_.path(), options, {});
  }
  // "b/large same, ...".
  static std::string states(const PublishedReport& report) {
    std::string text;
    for (const ComparedFile& file : report.files)
      text += cat(text.empty() ? "" : ", ", file.name, ' ', state_name(file.state));
    return text;
  }

  test::TempDir folder_;
};

TEST_F(PublishedCheck, equal_files_are_the_same) {
  std::uint64_t read = 0;
  const PublishedReport found =
      PublishedComparison("hub://a", this_process())
          .compare(folder_.path(), {}, [&](std::uint64_t bytes, std::uint64_t total) {
            read = bytes;
            EXPECT_EQ(total, 12U);
          });
  EXPECT_EQ(states(found), "b/large same, empty same, small same");
  EXPECT_TRUE(found.matches() && found.proves());
  EXPECT_THAT(found.findings, IsEmpty());
  EXPECT_EQ(found.files[0].found, kShaOfHello);
  EXPECT_EQ(found.files[2].found, kGitOfHello);
  EXPECT_EQ(read, 12U);
  EXPECT_EQ(cat(found.url, ' ', found.revision, ' ', found.commit), "hub://a main 0123");
}

TEST_F(PublishedCheck, each_difference_is_told_with_both_digests) {
  write_file(folder_ / "b/large", "hellO\n");
  write_file(folder_ / "empty", "x");
  write_file(folder_ / "small", "jello\n");
  const PublishedReport found = report();
  EXPECT_EQ(states(found), "b/large differs, empty differs, small differs");
  EXPECT_FALSE(found.matches());
  ASSERT_EQ(found.findings.size(), 3U);
  EXPECT_THAT(found.findings[0].message,
              AllOf(HasSubstr("has 6 bytes as on the hub, but SHA-256 computed "),
                    HasSubstr(cat(", on the hub ", kShaOfHello))));
  EXPECT_EQ(found.findings[0].hint.subject, "hf download a b/large");
  EXPECT_THAT(found.findings[1].message, HasSubstr("has 1 bytes, on the hub 0; git's SHA-1"));
  for (const Finding& finding : found.findings) {
    EXPECT_EQ(finding.code, ErrorCode::kHubMismatch);
    EXPECT_EQ(finding.severity, Finding::Severity::kDamage);
  }
}

TEST_F(PublishedCheck, names_of_one_side_are_warnings) {
  fs::remove(folder_ / "small");
  write_file(folder_ / "b/z", "");
  fs::create_directories(folder_ / ".git");
  write_file(folder_ / ".git/HEAD", "");
  fs::create_directories(folder_ / ".cache/huggingface");
  write_file(folder_ / ".cache/huggingface/CACHEDIR.TAG", "");
  write_file(folder_ / "fsdp_seal.json", "");
  const PublishedReport found = report();
  EXPECT_EQ(states(found), "b/large same, b/z extra, empty same, small missing");
  EXPECT_TRUE(found.matches());
  EXPECT_FALSE(found.proves());
  ASSERT_EQ(found.findings.size(), 2U);
  EXPECT_EQ(found.findings[0].code, ErrorCode::kHubMissing);
  EXPECT_EQ(found.findings[1].code, ErrorCode::kHubExtra);
  EXPECT_EQ(found.findings[1].severity, Finding::Severity::kWarning);
  // What the hub has is compared, whatever its name.
  listed().files.insert(listed().files.begin(),
                        {".git/HEAD", 0, DigestKind::kGitBlob, kGitOfNothing});
  EXPECT_THAT(states(report()), HasSubstr(".git/HEAD same"));
}

TEST_F(PublishedCheck, what_cannot_be_compared_has_a_reason) {
  listed().files[1].digest.clear();
  fs::remove(folder_ / "small");
  fs::create_symlink("/etc/passwd", folder_ / "small");
  const PublishedReport found = report();
  EXPECT_EQ(states(found), "b/large same, empty unchecked, small unchecked");
  EXPECT_FALSE(found.matches());
  EXPECT_EQ(found.files[1].reason, "the hub does not name git's SHA-1 of it");
  EXPECT_THAT(found.files[2].reason, HasSubstr("leads outside the folder"));
  ASSERT_EQ(found.findings.size(), 2U);
  EXPECT_EQ(found.findings[0].code, ErrorCode::kPathEscape);
  EXPECT_EQ(found.findings[1].code, ErrorCode::kHubUnchecked);
  EXPECT_EQ(found.findings[1].severity, Finding::Severity::kUnknown);
}

TEST_F(PublishedCheck, what_is_wrong_comes_before_what_lacks) {
  fs::remove(folder_ / "b/large");
  write_file(folder_ / "a", "");
  write_file(folder_ / "small", "jello\n");
  std::vector<ErrorCode> codes;
  for (const Finding& finding : report().findings) codes.push_back(finding.code);
  EXPECT_THAT(codes, testing::ElementsAre(ErrorCode::kHubMismatch, ErrorCode::kHubMissing,
                                          ErrorCode::kHubExtra));
}

TEST_F(PublishedCheck, names_that_no_shell_takes_have_no_command) {
  listed().files = {{"a 'b", 0, DigestKind::kGitBlob, kGitOfNothing},
                    {"a b", 0, DigestKind::kGitBlob, kGitOfNothing},
                    {"a\x1B", 0, DigestKind::kGitBlob, kGitOfNothing}};
  std::map<std::string, std::string> commands;
  for (const Finding& finding : report().findings) commands[finding.file] = finding.hint.subject;
  EXPECT_EQ(commands["a b"], "hf download a 'a b'");
  EXPECT_EQ(commands["a 'b"], "");
  EXPECT_EQ(commands["a\x1B"], "");
}

TEST_F(PublishedCheck, a_fast_check_compares_sizes_of_large_files) {
  const std::string large((1U << 20U) + 1, 'x');
  write_file(folder_ / "b/large", large);
  listed().files[0].bytes = large.size();
  VerifyOptions options;
  options.fast = true;
  const PublishedReport found = report(options);
  EXPECT_EQ(states(found), "b/large same-size, empty same, small same");
  EXPECT_TRUE(found.matches());
  EXPECT_FALSE(found.proves());
  EXPECT_EQ(states(report()), "b/large differs, empty same, small same");
}

TEST_F(PublishedCheck, pointers_of_git_lfs_are_known) {
  write_file(
      folder_ / "b/large",
      cat("version https://git-lfs.github.com/spec/v1\noid sha256:", kShaOfHello, "\nsize 6\n"));
  const PublishedReport found = report();
  EXPECT_EQ(states(found), "b/large differs, empty same, small same");
  EXPECT_THAT(found.findings.at(0).message, HasSubstr("is git LFS's pointer to the file"));
}

TEST_F(PublishedCheck, a_team_divides_the_files_and_asks_once) {
  write_file(folder_ / "small", "jello\n");
  const std::string alone = states(report());
  lists() = 0;
  std::vector<std::string> all(3);
  const auto errors = test::run_team(3, [&](Team& team) {
    VerifyOptions options;
    options.team = &team;
    const PublishedReport found = report(options);
    all[team.rank()] = cat(states(found), ", ", found.findings.size());
  });
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_THAT(all, testing::Each(alone + ", 1"));
  EXPECT_EQ(lists(), 1);
}

TEST_F(PublishedCheck, other_places_have_no_digests) {
  test::expect_error(ErrorCode::kUsage, "expected hf://org/name[@revision]",
                     [] { PublishedComparison("folder", this_process()); });
  test::expect_error(ErrorCode::kNotFound, "hub://b",
                     [] { PublishedComparison("hub://b", this_process()); });
}

}  // namespace
}  // namespace fsdp::formats
