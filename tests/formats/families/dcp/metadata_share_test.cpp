// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/dcp/metadata.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats::dcp {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Everything that a Metadata has, as a text.
std::string text_of(const Metadata& metadata) {
  std::ostringstream out;
  const Index& index = metadata.index;
  const auto location = [&](const Location& at) {
    out << '@' << at.file << '/' << at.transform << '/' << at.offset << '/' << at.length << '\n';
  };
  const auto path = [&](const KeyPath& steps) {
    for (const PathStep& step : steps) out << '[' << step.index() << ' ' << joined({step}) << ']';
  };
  out << metadata.nested << metadata.version.value_or("none") << '\n';
  for (const FileEntry& file : index.files)
    out << file.name << ' ' << file.bytes.value_or(-1) << ' ' << file.rank.value_or(-1) << '\n';
  for (const auto& names : index.transforms) {
    for (const std::string& name : names) out << name << ',';
    out << '\n';
  }
  for (const Finding& finding : metadata.findings) {
    out << finding_text(finding) << code_name(finding.code) << severity_name(finding.severity)
        << static_cast<int>(finding.hint.remedy) << finding.hint.subject;
    if (finding.bytes) out << finding.bytes->begin << '-' << finding.bytes->end;
    out << '\n';
  }
  for (const Index::EntryRef& ref : index.order) {
    out << ref.is_tensor << ' ' << ref.position << '\n';
    if (!ref.is_tensor) {
      const ValueEntry& value = index.values[ref.position];
      out << value.key;
      path(value.path);
      location(value.location);
      continue;
    }
    const TensorEntry& tensor = index.tensors[ref.position];
    out << tensor.key << static_cast<int>(tensor.dtype) << testing::PrintToString(tensor.shape);
    path(tensor.path);
    out << tensor.chunks.rank() << '\n';
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      out << box_text(tensor.chunks.box(c));
      location(tensor.chunks.location(c));
    }
  }
  for (const auto& [key, replicas] : metadata.replicas) {
    out << key;
    for (const Replica& replica : replicas) {
      out << '#' << replica.chunk;
      location(replica.location);
    }
  }
  return out.str();
}

TensorEntry tensor(std::string key, std::int64_t chunks) {
  TensorEntry tensor;
  tensor.key = std::move(key);
  tensor.path = {"model", std::int64_t{7}, tensor.key};
  tensor.dtype = DType::kBFloat16;
  tensor.shape = {2 * chunks, 3};
  tensor.chunks = ChunkList(2);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::int64_t offset[] = {2 * c, 0};
    const std::int64_t size[] = {2, 3};
    tensor.chunks.add(offset, size, {1, 1, static_cast<std::uint64_t>(100 * c), 99});
  }
  return tensor;
}

// One of everything, and more chunks than are sent at once.
Metadata metadata() {
  Metadata metadata;
  metadata.version = "1.0.0";
  metadata.nested = false;
  metadata.findings = {{ErrorCode::kHole,
                        "a hole",
                        "__0_0.distcp",
                        "w",
                        ByteRange{3, 9},
                        Finding::Severity::kWarning,
                        {Remedy::kStartAnew, "subject"}},
                       {ErrorCode::kIo, "another", {}, {}, {}}};
  Index& index = metadata.index;
  index.files = {{"__0_0.distcp", {}, 0}, {std::string("\0odd\n", 5), 17, {}}};
  index.transforms = {{}, {"stream.zstd", "other"}};
  index.add(ValueEntry{"step", {}, {0, 0, 5, 6}});
  index.add(tensor("many", 300'000));
  index.add(tensor("none", 0));
  index.add(ValueEntry{"", {"", std::int64_t{-1}}, {1, 1, UINT64_MAX, 0}});
  TensorEntry scalar;
  scalar.key = "scalar";
  scalar.chunks.add({}, {}, {0, 0, 1, 2});
  index.add(scalar);
  metadata.replicas = {{"many", {{7, {1, 1, 8, 9}}, {299'999, {0, 1, 2, 3}}}}, {"scalar", {}}};
  return metadata;
}

TEST(MetadataShare, every_member_has_what_the_leader_has) {
  const std::string expected = text_of(metadata());
  std::vector<std::string> texts(3);
  EXPECT_THAT(test::run_team(3,
                             [&](Team& team) {
                               Metadata mine;
                               if (team.leads()) mine = metadata();
                               mine = share_metadata(team, std::move(mine));
                               texts[team.rank()] = text_of(mine);
                             }),
              Each(""));
  // A failed comparison would print all of it.
  for (const std::string& text : texts) EXPECT_TRUE(text == expected);
  EXPECT_GT(expected.size(), 10'000'000U);
  EXPECT_THAT(expected, AllOf(HasSubstr("subject3-9"), HasSubstr("[0 model][1 7][0 many]"),
                              HasSubstr("many#7@1/1/8/9\n#299999@0/1/2/3\nscalar")));
}

TEST(MetadataShare, a_member_that_fails_meanwhile_makes_all_fail) {
  EXPECT_THAT(test::run_team(3,
                             [&](Team& team) {
                               if (team.rank() == 2) throw Error(ErrorCode::kIo, "no folder");
                               share_metadata(team, team.leads() ? metadata() : Metadata());
                             }),
              Each("rank 2: no folder"));
}

}  // namespace
}  // namespace fsdp::formats::dcp
