// SPDX-License-Identifier: Apache-2.0
// Whole folders: the results of opening, verifying and reading them for each kind of damage.
#include "formats/families/dcp/checkpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/checks/content_check.h"
#include "formats/state/content/content.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using test::DcpFolder;
using test::expect_error;
using test::float_tensor;
using test::list_of;
using test::text;
using test::TorchZip;
using test::verified;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// w float32 [4, 3] in two files, and a value in the first.
void fill(DcpFolder& folder) {
  folder.add_value("step", test::integer(7));
  folder.metadata.tensors = {
      {"w", {4, 3}, {folder.chunk({0, 0}, {2, 3}), folder.chunk({2, 0}, {2, 3}, "__1_0.distcp")}}};
}

// A folder of one tensor whose only item is `zip`.
void fill_with(DcpFolder& folder, const std::string& zip, const test::Numbers& shape = {4}) {
  folder.metadata.tensors = {
      {"w", shape, {{test::Numbers(shape.size(), 0), shape, folder.append(zip)}}}};
}

std::vector<std::string> verified_with(const std::string& zip) {
  DcpFolder folder;
  fill_with(folder, zip);
  return verified(*folder.open());
}

void expect_copy_refuses(const Checkpoint& checkpoint, ErrorCode code, std::string_view fragment) {
  expect_error(code, fragment,
               [&] { check_before_copy(checkpoint, content_of(checkpoint), nullptr); });
}

TEST(Dcp, a_sound_folder_has_nothing_to_report) {
  DcpFolder folder;
  fill(folder);
  const auto checkpoint = folder.open();
  EXPECT_EQ(checkpoint->description().format, "dcp");
  EXPECT_EQ(checkpoint->description().layout, "generic");
  EXPECT_EQ(checkpoint->description().ranks, 2);
  EXPECT_THAT(verified(*checkpoint), IsEmpty());
  VerifyOptions options;
  options.threads = 3;
  const VerifyReport report = checkpoint->verify(options);
  EXPECT_EQ(report.items, 3U);
  EXPECT_GT(report.bytes_checked, 2U * 2 * 3 * 4);
  EXPECT_EQ(report.bytes_unchecked, 0U);
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[0]).as_int(), 7);
  check_before_copy(*checkpoint, content_of(*checkpoint), nullptr);
  checkpoint->check_unchanged();
}

TEST(Dcp, without_metadata_says_what_is_there_instead) {  // M1
  const test::TempDir folder;
  const auto open = [&] { dcp::open_dcp(folder.path(), {}); };
  expect_error(ErrorCode::kNoMetadata, "has no .metadata", open);
  test::write_file(folder / "__0_0.distcp", "x");
  expect_error(ErrorCode::kNoMetadata,
               "but data files: the save was interrupted, or is still running", open);
  test::write_file(folder / ".metadata.tmp", "x");
  expect_error(ErrorCode::kNoMetadata, "but .metadata.tmp: the save was interrupted", open);
}

TEST(Dcp, metadata_must_be_a_regular_file) {  // M2
  const auto expect = [](const std::function<void(const fs::path&)>& make, ErrorCode code,
                         const char* fragment) {
    const test::TempDir folder;
    make(folder / ".metadata");
    expect_error(code, fragment, [&] { dcp::open_dcp(folder.path(), {}); });
  };
  expect([](const fs::path& path) { fs::create_directory(path); }, ErrorCode::kPath, "is a folder");
  expect([](const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); },
         ErrorCode::kNotRegular, "is a pipe");
  expect([](const fs::path& path) { fs::create_symlink("/dev/zero", path); },
         ErrorCode::kPathEscape, "outside");
  expect([](const fs::path& path) { fs::create_symlink(".metadata", path); }, ErrorCode::kPath,
         "loop of links");
}

TEST(Dcp, an_empty_metadata_is_named) {  // P1
  const test::TempDir folder;
  test::write_file(folder / ".metadata", "");
  expect_error(ErrorCode::kEmpty, "/.metadata: ", [&] { dcp::open_dcp(folder.path(), {}); });
}

TEST(Dcp, chunks_that_do_not_tile_are_found) {
  struct Case {
    const char* name;
    std::function<void(DcpFolder&)> damage;
    std::vector<const char*> expected;
  };
  const std::vector<Case> cases = {
      {"M6 hole",
       [](DcpFolder& f) {
         f.metadata.tensors[0].size = {5, 3};
       },
       {"HOLE 'w': chunks cover 12 of 15 elements of shape [5, 3]; none covers [4:5, 0:3]"}},
      {"M7 no chunks",
       [](DcpFolder& f) {
         f.metadata.tensors.push_back({"v", {2}, {}});
       },
       {"HOLE 'v': chunks cover 0 of 2 elements of shape [2]; none covers [0:2]"}},
      {"M8 overlap",
       [](DcpFolder& f) {
         f.metadata.tensors.push_back({"v", {3}, {f.chunk({0}, {2}), f.chunk({1}, {2})}});
       },
       {"OVERLAP 'v': chunks [0:2] and [1:3] overlap"}},
      {"M9 out of bounds",
       [](DcpFolder& f) {
         f.metadata.tensors.push_back({"v", {3}, {f.chunk({0}, {2}), f.chunk({2}, {2})}});
       },
       {"BOUNDS 'v': chunk [2:4] lies outside the tensor of shape [3]",
        "HOLE 'v': no chunk covers [2:3] of shape [3]"}},
      {"M9 begins beyond",
       [](DcpFolder& f) {
         f.metadata.tensors.push_back({"v", {3}, {f.chunk({0}, {3}), f.chunk({INT64_MAX}, {1})}});
       },
       {"BOUNDS 'v': "}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    DcpFolder folder;
    fill(folder);
    c.damage(folder);
    const auto checkpoint = folder.open();
    for (const bool fast : {true, false}) {
      const auto found = verified(*checkpoint, fast);
      ASSERT_EQ(found.size(), c.expected.size()) << testing::PrintToString(found);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_THAT(found[i], StartsWith(c.expected[i]));
    }
    EXPECT_THROW(check_before_copy(*checkpoint, content_of(*checkpoint), nullptr), Error);
  }
}

TEST(Dcp, the_same_chunk_twice_overlaps_itself) {  // M8
  DcpFolder folder;
  fill(folder);
  folder.metadata.tensors[0].chunks.push_back(folder.metadata.tensors[0].chunks[0]);
  EXPECT_THAT(verified(*folder.open(), true),
              Contains(StartsWith("OVERLAP 'w': chunks [0:2, 0:3] and [0:2, 0:3]")));
}

TEST(Dcp, a_payload_that_is_no_such_chunk_is_found) {
  DcpFolder folder;
  fill_with(folder, float_tensor({4}).bytes());
  folder.metadata.tensors[0].dtype = "int32";
  EXPECT_THAT(verified(*folder.open()),
              ElementsAre(AllOf(StartsWith("DTYPE __0_0.distcp: 'w': "),
                                HasSubstr("the item is float32, expected int32"))));  // M13
  folder.metadata.tensors[0].dtype = "float32";
  folder.metadata.tensors[0].size = folder.metadata.tensors[0].chunks[0].sizes = {2, 2};
  folder.metadata.tensors[0].chunks[0].offsets = {0, 0};
  const auto checkpoint = folder.open();
  EXPECT_THAT(verified(*checkpoint),
              ElementsAre(AllOf(StartsWith("SHAPE __0_0.distcp: 'w': "),
                                HasSubstr("the item has shape [4], expected [2, 2]"))));  // M14
  EXPECT_THAT(verified(*checkpoint, true), IsEmpty());
  expect_copy_refuses(*checkpoint, ErrorCode::kShape,
                      "/__0_0.distcp: 'w': item at byte 0: the item has shape [4]");

  DcpFolder value;
  TorchZip zip;
  zip.root = test::integer(1);
  fill_with(value, zip.bytes());
  EXPECT_THAT(verified(*value.open()),
              ElementsAre(AllOf(StartsWith("TYPE "), HasSubstr("the item holds no tensor"))));
}

TEST(Dcp, paths_that_lead_outside_open_nothing) {
  struct Case {
    const char* name;
    std::string path;
    ErrorCode code;
    const char* fragment;
  };
  const std::vector<Case> cases = {
      {"M15 absolute", "/etc/passwd", ErrorCode::kPathEscape,
       "'/etc/passwd' leads outside the folder"},
      {"M16 parent", "../__0_0.distcp", ErrorCode::kPathEscape, "leads outside the folder"},
      {"M16 parent inside", "a/../../b", ErrorCode::kPathEscape, "leads outside the folder"},
      {"M17 link outward", "link", ErrorCode::kPathEscape, "'link' leads outside the folder"},
      {"M18 empty", "", ErrorCode::kPath, "'' does not name a file"},
      {"M18 dot", ".", ErrorCode::kPath, "does not name a file"},
      {"M18 NUL", std::string("a\0b", 3), ErrorCode::kPath, "contains a NUL byte"},
      {"M18 10 KB", std::string(10'000, 'p'), ErrorCode::kPath,
       "is 10000 bytes long, at most 4095"},
      {"M18 300 bytes", std::string(300, 'p'), ErrorCode::kPath, "too long for this file system"},
      {"M18 folder", "a", ErrorCode::kPath, "'a' is a folder"},
      {"M2 pipe", "pipe", ErrorCode::kNotRegular, "is a pipe"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    DcpFolder folder;
    fill(folder);
    fs::create_directory(folder.folder / "a");
    fs::create_symlink("/etc/passwd", folder.folder / "link");
    ASSERT_EQ(::mkfifo((folder.folder / "pipe").c_str(), 0600), 0);
    folder.metadata.values[0].item.path = c.path;
    expect_error(c.code, c.fragment, [&] { folder.open(); });
  }
}

TEST(Dcp, a_link_within_the_folder_and_a_folder_below_it_are_sound) {
  DcpFolder folder;
  fill(folder);
  fs::create_directory(folder.folder / "sub");
  folder.write();
  fs::rename(folder.folder / "__0_0.distcp", folder.folder / "sub/data");
  fs::create_symlink("sub/data", folder.folder / "__0_0.distcp");
  EXPECT_THAT(verified(*open_checkpoint(folder.folder.path())), IsEmpty());
}

TEST(Dcp, every_missing_file_is_listed_at_once) {  // M19
  DcpFolder folder;
  fill(folder);
  folder.files.clear();
  const auto checkpoint = folder.open();
  for (const bool fast : {true, false}) {
    EXPECT_THAT(verified(*checkpoint, fast),
                ElementsAre("SHARD_MISSING __0_0.distcp: file is missing; 2 items lie in it, the "
                            "first is 'w'; 0 of "
                            "1 tensor are whole",
                            "SHARD_MISSING __1_0.distcp: file is missing; 1 item lies in it, the "
                            "first is 'w'; 0 of "
                            "1 tensor are whole"));
  }
  expect_copy_refuses(*checkpoint, ErrorCode::kShardMissing, "__0_0.distcp: file is missing");
  expect_error(ErrorCode::kShardMissing, "/__0_0.distcp",
               [&] { checkpoint->value(checkpoint->index().values[0]); });
}

TEST(Dcp, an_item_outside_its_file_is_found) {  // M20
  const auto with = [](std::int64_t offset, std::int64_t length) {
    DcpFolder folder;
    fill_with(folder, float_tensor({4}).bytes());
    folder.metadata.tensors[0].chunks[0].item.offset = offset;
    folder.metadata.tensors[0].chunks[0].item.length = length;
    return verified(*folder.open());
  };
  const auto reaches_out = Contains(AllOf(StartsWith("EXTENT __0_0.distcp: 'w': "),
                                          HasSubstr("reach past the end of the file, which has")));
  EXPECT_THAT(with(0, 1'000'000), reaches_out);
  EXPECT_THAT(with(1'000'000, 1), reaches_out);
  EXPECT_THAT(with(1, INT64_MAX - 1), reaches_out);
  EXPECT_THAT(with(INT64_MAX, INT64_MAX), reaches_out);
  EXPECT_THAT(with(0, 0),
              Contains(AllOf(StartsWith("EMPTY __0_0.distcp: 'w': "), HasSubstr("has no bytes"))));
}

TEST(Dcp, items_that_share_bytes_and_bytes_of_no_item_are_found) {  // M21
  DcpFolder folder;
  const test::ItemSpec item = folder.append(float_tensor({4}).bytes());
  const std::int64_t gap_begin = item.length;
  folder.append(std::string(10, 'g'));
  folder.metadata.tensors = {{"a", {4}, {{{0}, {4}, item}}},
                             {"b", {4}, {{{0}, {4}, item}}},
                             {"c", {4}, {{{0}, {4}, folder.append(float_tensor({4}).bytes())}}}};
  const auto checkpoint = folder.open();
  const std::string gap = "warning EXTENT __0_0.distcp: bytes " + std::to_string(gap_begin) +
                          " to " + std::to_string(gap_begin + 10) + " belong to no item";
  EXPECT_THAT(verified(*checkpoint),
              ElementsAre(HasSubstr("EXTENT_OVERLAP __0_0.distcp: 'b': the item shares bytes with "
                                    "that of 'a'"),
                          gap));
}

TEST(Dcp,
     two_tensors_that_point_to_each_others_bytes_cannot_be_told) {  // M22, M29: no format holds a
                                                                    // hash of the whole
  DcpFolder folder;
  folder.metadata.tensors = {{"a", {4}, {folder.chunk({0}, {4})}},
                             {"b", {4}, {folder.chunk({0}, {4})}}};
  std::swap(folder.metadata.tensors[0].chunks[0].item, folder.metadata.tensors[1].chunks[0].item);
  EXPECT_THAT(verified(*folder.open()), IsEmpty());
}

TEST(Dcp, an_unknown_transform_is_never_guessed) {  // M24
  DcpFolder folder;
  fill(folder);
  folder.metadata.values[0].item.transforms = list_of({text("stream.lz77/1")});
  const auto checkpoint = folder.open();
  EXPECT_THAT(verified(*checkpoint),
              ElementsAre(AllOf(StartsWith("UNSUPPORTED __0_0.distcp: 'step': "),
                                HasSubstr("transform 'stream.lz77/1' is unknown"))));
  expect_error(ErrorCode::kUnsupported, "'stream.lz77/1' is unknown",
               [&] { checkpoint->value(checkpoint->index().values[0]); });
  folder.metadata.values[0].item.transforms = list_of({text("stream.zstd/2")});
  EXPECT_THAT(verified(*folder.open()), ElementsAre(HasSubstr("'stream.zstd/2' is unknown")));
  // Claims to be compressed and is not.
  folder.metadata.values[0].item.transforms = list_of({text("stream.zstd/1")});
  EXPECT_THAT(verified(*folder.open()), ElementsAre(HasSubstr("__0_0.distcp: 'step': ")));
}

TEST(Dcp, names_are_data_and_are_shown_escaped) {  // M26
  DcpFolder folder;
  fill(folder);
  folder.metadata.tensors.push_back({"../\x1b[31mred\n", {2}, {}});
  EXPECT_THAT(verified(*folder.open()), ElementsAre(StartsWith("HOLE '../\\x1b[31mred\\x0a': ")));
  EXPECT_FALSE(fs::exists(folder.folder.path().parent_path() / "\x1b[31mred\n"));
}

TEST(Dcp, rank_local_metadata_counts_where_it_is_alone) {  // M27
  DcpFolder folder;
  fill(folder);
  folder.write();
  fs::rename(folder.folder / ".metadata", folder.folder / "__0.metadata");
  const auto alone = open_checkpoint(folder.folder.path());
  EXPECT_EQ(alone->description().layout, "rank-local");
  EXPECT_THAT(verified(*alone), IsEmpty());
  const auto both = folder.open();
  EXPECT_EQ(both->description().layout, "generic");
  EXPECT_THAT(
      verified(*both),
      ElementsAre(
          "warning EXTRA_FILE __0.metadata: is ignored, because the folder has a .metadata"));
}

TEST(Dcp, a_rank_whose_local_metadata_is_missing_leaves_a_hole) {
  const test::TempDir folder;
  fs::copy(test::data_path("golden/2.11.0/rank_local_metadata/ckpt"), folder.path(),
           fs::copy_options::recursive);
  EXPECT_THAT(verified(*open_checkpoint(folder.path())), IsEmpty());
  fs::remove(folder / "__1.metadata");
  EXPECT_THAT(verified(*open_checkpoint(folder.path()), true), Contains(StartsWith("HOLE ")));
}

TEST(Dcp, leftovers_of_another_save_are_warned_of) {  // M28
  DcpFolder folder;
  fill(folder);
  folder.files["__9_0.distcp"] = "left over";
  folder.files["__8_0.distcp"] = "";  // a rank with nothing to write
  folder.files["notes.txt"] = "mine";
  folder.files[".metadata.tmp"] = "x";
  EXPECT_THAT(verified(*folder.open()),
              ElementsAre(StartsWith("warning EXTRA_FILE .metadata.tmp: "),
                          "warning EXTRA_FILE __9_0.distcp: no item lies in this file: it is left "
                          "over from another save"));
}

TEST(Dcp, what_cannot_be_joined_is_named) {  // M30
  DcpFolder sparse;
  fill(sparse);
  sparse.metadata.tensors[0].layout = "torch.sparse_coo";
  EXPECT_THAT(verified(*sparse.open()),
              Contains("unknown UNSUPPORTED .metadata: 'w': layout is 'torch.sparse_coo', expected "
                       "'torch.strided'"));
  expect_copy_refuses(*sparse.open(), ErrorCode::kUnsupported, "layout is 'torch.sparse_coo'");
  sparse.metadata.tensors[0].layout = "torch.sparse_coO";  // nobody's: a flipped bit
  EXPECT_THAT(verified(*sparse.open()), Contains(StartsWith("UNSUPPORTED .metadata: 'w': ")));

  const auto quantized = open_checkpoint(test::data_path("golden/2.11.0/quantized/ckpt"));
  EXPECT_THAT(verified(*quantized), Each(AllOf(StartsWith("unknown UNSUPPORTED __0_0.distcp: "),
                                               HasSubstr("the tensor is quantized"))));
  expect_copy_refuses(*quantized, ErrorCode::kUnsupported, "the tensor is quantized");
}

TEST(Dcp, a_flipped_bit_of_a_payload_names_tensor_record_and_byte) {  // Z15
  std::string bytes = float_tensor({4}).bytes();
  // The storage's last byte is right before the data descriptor that follows its local header.
  bytes[bytes.find("PK\x07\x08", bytes.find("data/0")) - 1] ^= 1;
  EXPECT_THAT(verified_with(bytes),
              ElementsAre(AllOf(StartsWith("ZIP_CRC __0_0.distcp: 'w': record 'archive/data/0'"),
                                HasSubstr("CRC-32 stored ecbb4b55"))));  // CRC-32 of 16 zero bytes
}

TEST(Dcp, bytes_without_a_checksum_are_counted) {  // Z16
  TorchZip zip = float_tensor({4});
  zip.crcs = false;
  DcpFolder folder;
  fill_with(folder, zip.bytes());
  const VerifyReport report = folder.open()->verify({});
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.bytes_checked, 0U);
  EXPECT_EQ(report.bytes_unchecked, zip.bytes().size());
}

TEST(Dcp, an_item_that_torch_save_did_not_write_so_is_found) {
  struct Case {
    const char* name;
    std::function<void(TorchZip&)> damage;
    const char* begin;
    const char* fragment;
  };
  const std::vector<Case> cases = {
      {"Z19 data.pkl", [](TorchZip& z) { z.has_pickle = false; }, "RECORD_MISSING",
       "'archive/data.pkl' is missing"},
      {"Z19 version", [](TorchZip& z) { z.version.reset(); }, "RECORD_MISSING",
       "'archive/version' is missing"},
      {"Z19 storage", [](TorchZip& z) { z.storages.clear(); }, "RECORD_MISSING",
       "'archive/data/0' is missing"},
      {"Z20 short", [](TorchZip& z) { z.storages[0].second.resize(12); }, "RECORD_SIZE",
       "has 12 bytes, expected 16 for 4 elements of float32"},
      {"Z20 long", [](TorchZip& z) { z.storages[0].second.resize(20); }, "RECORD_SIZE",
       "has 20 bytes, expected 16"},
      {"Z21 nonsense", [](TorchZip& z) { z.byteorder = "middle"; }, "BYTEORDER",
       "byteorder is 'middle'"},
      {"Z22 key ../0",
       [](TorchZip& z) { z.root = test::tensor_call(test::storage("../0", 4), 0, {4}, {1}); },
       "RECORD_MISSING", "'archive/data/../0' is missing"},
      {"Z22 empty key",
       [](TorchZip& z) { z.root = test::tensor_call(test::storage("", 4), 0, {4}, {1}); },
       "STORAGE", "key is not text of 1 to 4096 bytes"},
      {"Z22 key of 1 MB",
       [](TorchZip& z) {
         z.root = test::tensor_call(test::storage(std::string(1 << 20, '0'), 4), 0, {4}, {1});
       },
       "STORAGE", "key is not text of 1 to 4096 bytes"},
      {"no tensor", [](TorchZip& z) { z.root = test::tuple_of({test::global("torch", "Size")}); },
       "TYPE", "holds no tensor"},
      {"TorchScript",
       [](TorchZip& z) {
         z.more_records = {{"constants.pkl", "x"}};
       },
       "UNSUPPORTED", "TorchScript"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TorchZip zip = float_tensor({4});
    c.damage(zip);
    EXPECT_THAT(verified_with(zip.bytes()),
                ElementsAre(AllOf(StartsWith(std::string(c.begin) + " __0_0.distcp: 'w': "),
                                  HasSubstr(c.fragment))));
  }
  EXPECT_THAT(verified_with(float_tensor({4}).bytes()), IsEmpty());
}

TEST(Dcp, a_name_of_code_in_a_value_is_damage_until_it_is_allowed) {
  DcpFolder folder;
  folder.add_value("v", test::call(test::global("os", "system"), {text("true")}));
  const auto checkpoint = folder.open();
  EXPECT_THAT(verified(*checkpoint),
              ElementsAre(StartsWith("unsafe GLOBAL __0_0.distcp: 'v': global 'os.system'")));
  const Hint hint = checkpoint->verify({}).findings.at(0).hint;
  EXPECT_EQ(hint.remedy, Remedy::kAllowGlobal);
  EXPECT_EQ(hint.subject, "os.system");
  VerifyOptions options;
  options.allowed_globals = {"os.system"};
  EXPECT_THAT(checkpoint->verify(options).findings, IsEmpty());
}

TEST(Dcp, a_file_that_changes_while_it_is_read_is_an_error) {
  DcpFolder folder;
  fill(folder);
  const auto checkpoint = folder.open();
  checkpoint->value(checkpoint->index().values[0]);
  checkpoint->check_unchanged();
  test::write_file(folder.folder / "__0_0.distcp", "short");
  expect_error(ErrorCode::kChanged, "__0_0.distcp", [&] { checkpoint->check_unchanged(); });
}

TEST(Dcp, verify_stops_when_asked) {
  DcpFolder folder;
  fill(folder);
  VerifyOptions options;
  options.cancelled = [] { return true; };
  expect_error(ErrorCode::kInterrupted, "interrupted", [&] { folder.open()->verify(options); });
}

TEST(Dcp, a_narrowed_index_still_finds_its_values) {
  DcpFolder folder;
  folder.add_value("a", test::integer(1));
  folder.add_value("b", test::integer(2));
  const auto checkpoint = folder.open();
  checkpoint->keep([](const std::string& key) { return key == "b"; });
  ASSERT_EQ(checkpoint->index().values.size(), 1U);
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[0]).as_int(), 2);
}

TEST(Dcp, lightnings_meta_file_gives_the_rest_of_the_trainers_state) {
  DcpFolder folder;
  fill(folder);
  TorchZip meta;
  meta.root = test::dict_of({{text("epoch"), test::integer(3)}, {text("loops"), "}"}});
  folder.files["meta.pt"] = meta.bytes();
  const auto checkpoint = folder.open();
  EXPECT_EQ(checkpoint->description().layout, "lightning");
  ASSERT_EQ(checkpoint->index().values.size(), 3U);
  EXPECT_EQ(checkpoint->index().values[1].key, "epoch");
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[1]).as_int(), 3);
  EXPECT_THAT(verified(*checkpoint), IsEmpty());

  meta.root = test::integer(1);
  folder.files["meta.pt"] = meta.bytes();
  expect_error(ErrorCode::kMetaType, "does not hold a dict", [&] { folder.open(); });
}

}  // namespace
}  // namespace fsdp::formats
