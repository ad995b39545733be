// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/pickle_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/containers/zip/decompress.h"
#include "formats/families/checks/globals.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using test::global;
using test::proto;
using test::write_file;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const std::string kPayload = test::call(global("os", "system"), {test::text("id")});

std::vector<std::string> unknown(const GlobalScan& scan) {
  std::vector<std::string> names;
  for (const GlobalUse& use : scan.globals) {
    if (use.status == GlobalUse::Status::kUnknown) names.push_back(use.module + "." + use.name);
  }
  return names;
}

std::vector<std::string> codes(const GlobalScan& scan) {
  std::vector<std::string> found;
  for (const Finding& finding : scan.findings)
    found.emplace_back(std::string(code_name(finding.code)) + " " + finding.file);
  return found;
}

GlobalScan scan(const std::filesystem::path& path) {
  return scan_globals(path, {});
}

test::TorchZip archive_of(const std::string& opcodes) {
  test::TorchZip zip;
  zip.root = opcodes;
  return zip;
}

TEST(PickleSearch, a_byte_behind_stop_hides_nothing) {
  test::TempDir dir;
  write_file(dir / "a.pkl", proto(2, kPayload) + "x");
  EXPECT_THAT(unknown(scan(dir / "a.pkl")), ElementsAre("os.system"));
  EXPECT_THAT(codes(scan(dir / "a.pkl")), ElementsAre("TRAILING a.pkl"));
}

TEST(PickleSearch, pickles_behind_each_other_are_all_read) {
  test::TempDir dir;
  write_file(dir / "a.pkl", proto(2, "N") + proto(2, "]") + proto(2, kPayload));
  EXPECT_THAT(unknown(scan(dir / "a.pkl")), ElementsAre("os.system"));
  EXPECT_THAT(codes(scan(dir / "a.pkl")), IsEmpty());
}

TEST(PickleSearch, protocol_0_and_opcodes_without_proto_are_pickles) {
  test::TempDir dir;
  write_file(dir / "a.pkl", "cos\nsystem\np0\n(S'id'\np1\ntp2\nRp3\n.");
  write_file(dir / "b.bin", "(S'id'\nios\nsystem\n.");
  write_file(dir / "c.pth", std::string("\x80\x00", 2) + "cposix\nsystem\n.");
  EXPECT_THAT(unknown(scan(dir.path())), UnorderedElementsAre("os.system", "posix.system"));
  EXPECT_THAT(codes(scan(dir.path())), IsEmpty());
}

TEST(PickleSearch, files_that_are_no_pickles_are_none) {
  test::TempDir dir;
  write_file(dir / "config.json", "{\"a\": 1}");
  write_file(dir / "notes.txt", "N. B. this is text.");
  write_file(dir / "callbacks.yaml", "callbacks: none\nlr: 0.1\n.\n");
  write_file(dir / "latest", "global_step10");
  // A header of 640 bytes begins like PROTO 2.
  write_file(dir / "a.safetensors",
             std::string("\x80\x02\0\0\0\0\0\0{", 9) + std::string(640, ' '));
  const GlobalScan result = scan(dir.path());
  EXPECT_EQ(result.pickles, 0U);
  EXPECT_THAT(codes(result), IsEmpty());
}

TEST(PickleSearch, a_data_file_without_metadata_is_looked_into) {
  test::TempDir dir;
  write_file(dir / "__0_0.distcp",
             archive_of("N").bytes() + archive_of(kPayload).bytes() + proto(2, global("a", "b")));
  EXPECT_THAT(unknown(scan(dir / "__0_0.distcp")), UnorderedElementsAre("os.system", "a.b"));
  EXPECT_THAT(codes(scan(dir / "__0_0.distcp")), IsEmpty());
  EXPECT_THAT(unknown(scan(dir.path())), UnorderedElementsAre("os.system", "a.b"));
  write_file(dir / "__0_0.distcp", archive_of("N").bytes() + "junk");
  EXPECT_THAT(codes(scan(dir.path())), ElementsAre("TRUNCATED __0_0.distcp"));
}

TEST(PickleSearch, what_metadata_do_not_name_is_looked_into) {
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {4}, {made.chunk({0}, {4})}});
  // Bytes of no item, and a file that is not named.
  made.append(archive_of(kPayload).bytes());
  made.metadata.tensors.push_back({"v", {2}, {made.chunk({0}, {2})}});
  made.write();
  write_file(made.folder / "__1_0.distcp", archive_of(global("mine", "Config")).bytes());
  const GlobalScan result = scan(made.folder.path());
  EXPECT_THAT(unknown(result), UnorderedElementsAre("os.system", "mine.Config"));
  EXPECT_THAT(codes(result), IsEmpty());
}

TEST(PickleSearch, an_item_that_is_a_bare_pickle_is_one) {
  test::DcpFolder made;
  made.metadata.values.push_back({"v", made.append(proto(4, kPayload))});
  made.write();
  EXPECT_THAT(unknown(scan(made.folder.path())), ElementsAre("os.system"));
}

TEST(PickleSearch, data_files_are_looked_into_where_the_metadata_do_not_serve) {
  test::DcpFolder made;
  made.add_value("v", kPayload);
  made.write();
  write_file(made.folder / ".metadata", proto(2, "N"));
  const GlobalScan result = scan(made.folder.path());
  EXPECT_THAT(unknown(result), ElementsAre("os.system"));
  EXPECT_THAT(codes(result), testing::SizeIs(1));
}

TEST(PickleSearch, every_record_that_reads_as_a_pickle_is_one) {
  test::TempDir dir;
  test::TorchZip zip = archive_of("N");
  zip.more_records = {{"extra", proto(2, kPayload)},
                      {"code/a.pkl", proto(2, global("mine", "A"))},
                      {"old", "cmine\nOld\n."},
                      {"broken.pkl", "cmine\nCut\n"}};
  zip.storages = {{"0", proto(2, global("mine", "Hidden"))}, {"1", std::string(64, '\0')}};
  write_file(dir / "a.pt", zip.bytes());
  const GlobalScan result = scan(dir / "a.pt");
  EXPECT_THAT(unknown(result),
              UnorderedElementsAre("os.system", "mine.A", "mine.Old", "mine.Cut", "mine.Hidden"));
  EXPECT_THAT(codes(result), ElementsAre("TRUNCATED a.pt"));
}

TEST(PickleSearch, what_is_packed_is_said_not_to_be_looked_into) {
  test::TempDir dir;
  write_file(dir / "a.pkl.gz", "\x1F\x8B\x08 rest");
  write_file(dir / "b.npy", "\x93NUMPY\x01 {'descr': '|O', }");
  EXPECT_THAT(codes(scan(dir.path())),
              UnorderedElementsAre("UNSUPPORTED a.pkl.gz", "UNSUPPORTED b.npy"));
}

TEST(OutputNames, an_output_with_a_name_outside_the_list_is_refused) {
  test::TempDir dir;
  write_file(dir / "a.pt", archive_of(kPayload).bytes());
  const auto check = [&](const std::set<std::string>& allowed) {
    check_output_names(dir / "a.pt", "out.pt", allowed, {});
  };
  test::expect_error(ErrorCode::kGlobal,
                     "out.pt: 'record archive/data.pkl': would refer to 'os.system'",
                     [&] { check({}); });
  check({"os.system"});
  test::expect_error(ErrorCode::kNotFound, "out.pt: cannot be read back",
                     [&] { check_output_names(dir / "nothing", "out.pt", {}, {}); });
  write_file(dir / "a.pt", archive_of("N").bytes());
  check({});
  // A tensor of bytes may hold a pickle: no loader of the file runs it.
  test::TorchZip bytes = archive_of("N");
  bytes.storages = {{"0", proto(2, kPayload)}};
  write_file(dir / "a.pt", bytes.bytes());
  check({});
  write_file(dir / "a.pt", proto(2, "N") + "x");
  test::expect_error(ErrorCode::kTrailing, "nothing was written", [&] { check({}); });
}

}  // namespace
}  // namespace fsdp::formats
