// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's common state as a file and as an item: what is read of each, and what is said of
// folders whose parts contradict each other.  Real folders:
// tests/tools/verbs/writing/megatron_test.cpp.
#include "formats/families/dcp/megatron.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/dcp/names.h"
#include "formats/families/dcp/output.h"
#include "formats/state/content/content.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using dcp::kMegatronCommonKey;
using test::DcpFolder;
using test::dict_of;
using test::integer;
using test::list_of;
using test::text;
using test::TorchZip;
using test::verified;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

const std::string kNew = R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})";
const std::string kOld =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

std::string state() {
  return dict_of({{text("iteration"), integer(7)}, {text("args"), list_of({text("a")})}});
}

// A tensor, an object of a rank, and metadata.json.
void fill(DcpFolder& folder, const std::string& metadata) {
  folder.metadata.tensors = {{"decoder.w", {4, 3}, {folder.chunk({0, 0}, {4, 3})}}};
  folder.add_value("rng_state/shard_0_1", list_of({integer(1)}));
  if (!metadata.empty()) folder.files["metadata.json"] = metadata;
}

void add_item(DcpFolder& folder, const std::string& opcodes) {
  folder.add_value(std::string(kMegatronCommonKey), opcodes);
}

void add_file(DcpFolder& folder) {
  TorchZip zip;
  zip.root = state();
  folder.files["common.pt"] = zip.bytes();
}

std::vector<std::string> value_keys(const Checkpoint& checkpoint) {
  std::vector<std::string> keys;
  for (const ValueEntry& value : checkpoint.index().values) keys.push_back(value.key);
  return keys;
}

// Opens a folder with this item, and returns the findings of verify.
std::vector<std::string> verified_item(const std::string& opcodes) {
  DcpFolder folder;
  fill(folder, kNew);
  add_item(folder, opcodes);
  const auto checkpoint = folder.open();
  EXPECT_EQ(checkpoint->description().layout, "megatron-0.19");
  EXPECT_THAT(value_keys(*checkpoint), Contains(kMegatronCommonKey));
  return verified(*checkpoint);
}

TEST(MegatronFolder, the_common_state_is_read_from_the_item_as_from_the_file) {
  for (const bool item : {true, false}) {
    DcpFolder folder;
    fill(folder, item ? kNew : kOld);
    if (item) {
      add_item(folder, list_of({state()}));
    } else {
      add_file(folder);
    }
    const auto checkpoint = folder.open();
    EXPECT_EQ(checkpoint->description().layout, item ? "megatron-0.19" : "megatron");
    EXPECT_EQ(checkpoint->description().version, "1");
    EXPECT_THAT(value_keys(*checkpoint), ElementsAre("rng_state/shard_0_1", "iteration", "args"));
    const auto& values = checkpoint->index().values;
    EXPECT_EQ(checkpoint->value(values[1]).as_int(), 7);
    EXPECT_EQ(checkpoint->value(values[2]).items().size(), 1U);
    EXPECT_THAT(verified(*checkpoint), IsEmpty());
    // The tensor, the object, and the state once.
    EXPECT_EQ(checkpoint->verify({}).items, 3U);
  }
}

TEST(MegatronFolder, a_narrowed_item_is_read_by_key) {
  DcpFolder folder;
  fill(folder, kNew);
  add_item(folder, list_of({state()}));
  const auto checkpoint = folder.open();
  checkpoint->keep([](const std::string& key) { return key == "args"; });
  ASSERT_EQ(checkpoint->index().values.size(), 1U);
  EXPECT_EQ(checkpoint->value(checkpoint->index().values[0]).items().size(), 1U);
  EXPECT_THAT(verified(*checkpoint), IsEmpty());
}

TEST(MegatronFolder, parts_that_contradict_each_other_are_findings) {
  struct Case {
    const char* name;
    std::string metadata;
    bool file;
    bool item;
    std::vector<const char*> expected;
  };
  const std::string first = R"({"sharded_backend": "torch_dist")";
  const std::vector<Case> cases = {
      {"neither",
       kNew,
       false,
       false,
       {"SHARD_MISSING common.pt: is missing, and so is the item 'common_state/shard_0_1'"}},
      {"both",
       kNew,
       true,
       true,
       {"EXTRA_FILE common.pt: lies beside the item 'common_state/shard_0_1': the folder has two "
        "common states"}},
      {"item, not finished",
       "",
       false,
       true,
       {"warning NO_METADATA metadata.json: is missing beside the item 'common_state/shard_0_1'"}},
      {"item, and members of earlier versions",
       kOld,
       false,
       true,
       {"warning VERSION metadata.json: common_backend is present, although the common state is "
        "the item",
        "warning VERSION metadata.json: common_backend_version is present"}},
      {"unknown version",
       first + R"(, "sharded_backend_version": 2})",
       false,
       true,
       {"warning VERSION metadata.json: sharded_backend_version is '2', expected 1"}},
      {"version of another type",
       first + R"(, "sharded_backend_version": "1"})",
       false,
       true,
       {"warning VERSION metadata.json: sharded_backend_version is '\"1\"', expected 1"}},
      {"unknown member",
       first + R"(, "compression": "zstd"})",
       false,
       true,
       {"warning VERSION metadata.json: 'compression' is not a member"}},
      {"unknown backend of the file",
       first + R"(, "common_backend": "zarr"})",
       true,
       false,
       {"warning VERSION metadata.json: common_backend is '\"zarr\"', expected \"torch\""}},
      {"another backend",
       R"({"sharded_backend": "zarr"})",
       false,
       true,
       {"warning VERSION metadata.json: sharded_backend is 'zarr', expected 'torch_dist'"}},
      {"not an object", "[]", false, true, {"warning VERSION metadata.json: sharded_backend"}},
      {"not JSON", "{\"sharded_backend\":", false, true, {"JSON metadata.json"}},
      {"the first member alone, with the file", first + "}", true, false, {}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    DcpFolder folder;
    fill(folder, one.metadata);
    if (one.file) add_file(folder);
    if (one.item) add_item(folder, list_of({state()}));
    const auto checkpoint = folder.open();
    const std::vector<std::string> found = verified(*checkpoint);
    ASSERT_EQ(found.size(), one.expected.size()) << testing::PrintToString(found);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_THAT(found[i], StartsWith(one.expected[i]));
    // Nothing of two states is taken for the state.
    const auto keys = value_keys(*checkpoint);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), "iteration"), one.file != one.item ? 1 : 0);
  }
}

TEST(MegatronFolder, other_folders_with_a_metadata_json_are_not_megatrons) {
  for (const char* const metadata : {"{\"name\": \"run 7\"}", "[]", "{", "7"}) {
    DcpFolder folder;
    fill(folder, metadata);
    EXPECT_EQ(folder.open()->description().layout, "generic") << metadata;
  }
}

TEST(MegatronFolder, an_item_of_another_form_stays_a_value_and_is_a_finding) {
  const std::string dict = state();
  for (const std::string& opcodes :
       {dict, list_of({}), list_of({dict, dict}), list_of({integer(1)}), integer(7), text("x")}) {
    EXPECT_THAT(verified_item(opcodes),
                ElementsAre(AllOf(StartsWith("META_TYPE"), HasSubstr("common_state/shard_0_1"),
                                  HasSubstr("is not a list of one dict"))));
  }
  EXPECT_THAT(verified_item(list_of({dict_of({{integer(1), integer(2)}})})),
              ElementsAre(AllOf(StartsWith("KEY"), HasSubstr("a key is not text"))));
  for (const char* const taken : {"decoder.w", "rng_state/shard_0_1"}) {
    EXPECT_THAT(verified_item(list_of({dict_of({{text(taken), integer(2)}})})),
                ElementsAre(AllOf(StartsWith("KEY"), HasSubstr(taken),
                                  HasSubstr("is also the key of an item of the folder"))));
  }
}

TEST(MegatronFolder, an_item_that_cannot_be_opened_is_reported_by_verify_once) {
  EXPECT_THAT(verified_item("}"), ElementsAre(StartsWith("META_TYPE")));
  EXPECT_THAT(verified_item("K"), ElementsAre(HasSubstr("common_state/shard_0_1")));
  DcpFolder folder;
  fill(folder, kNew);
  add_item(folder, list_of({state()}));
  folder.files["__0_0.distcp"].resize(folder.files["__0_0.distcp"].size() - 30);
  EXPECT_THAT(verified(*folder.open()),
              ElementsAre(AllOf(StartsWith("EXTENT"), HasSubstr("common_state/shard_0_1"))));
  folder.files.erase("__0_0.distcp");
  std::filesystem::remove(folder.folder / "__0_0.distcp");
  EXPECT_THAT(verified(*folder.open()), ElementsAre(StartsWith("SHARD_MISSING")));
}

TEST(MegatronFolder, a_key_of_this_name_that_is_a_tensor_or_has_no_item_is_not_the_state) {
  DcpFolder folder;
  fill(folder, kNew);
  folder.metadata.tensors.push_back(
      {std::string(kMegatronCommonKey), {2}, {folder.chunk({0}, {2})}});
  EXPECT_THAT(verified(*folder.open()), ElementsAre(StartsWith("SHARD_MISSING common.pt")));
  DcpFolder bare;
  fill(bare, kNew);
  bare.metadata.values.push_back({std::string(kMegatronCommonKey), {}, false});
  EXPECT_THAT(verified(*bare.open()),
              testing::UnorderedElementsAre(StartsWith("SHARD_MISSING common.pt"),
                                            StartsWith("CHUNK_MISSING")));
}

// Flips and cuts each byte of the item: never anything but findings or an Error.
TEST(MegatronFolder, damaged_items_are_found) {
  DcpFolder folder;
  fill(folder, kNew);
  add_item(folder, list_of({state()}));
  const test::ItemSpec item = folder.metadata.values.back().item;
  const std::string whole = folder.files[item.path];
  const auto begin = static_cast<std::size_t>(item.offset);
  const auto end = begin + static_cast<std::size_t>(item.length);
  for (std::size_t at = begin; at < end; at += 3) {
    std::string& bytes = folder.files[item.path];
    bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    try {
      const auto checkpoint = folder.open();
      for (const ValueEntry& value : checkpoint->index().values) {
        if (value.member) (void)checkpoint->value(value);
      }
      (void)verified(*checkpoint);
    } catch (const Error&) {
    }
  }
  folder.files[item.path] = whole;
  EXPECT_THAT(verified(*folder.open()), IsEmpty());
}

TEST(MegatronFolder, both_layouts_are_written_of_each) {
  for (const bool item : {true, false}) {
    DcpFolder source;
    fill(source, item ? kNew : kOld);
    if (item) {
      add_item(source, list_of({state()}));
    } else {
      add_file(source);
    }
    const auto checkpoint = source.open();
    for (const std::string_view layout : {dcp::kMegatronLayout, dcp::kMegatronItemLayout}) {
      const test::TempDir out;
      DcpOutputOptions options;
      options.world_size = 2;
      options.layout = layout;
      OutputOptions how;
      how.sync = false;
      const auto output =
          plan_dcp_output(*checkpoint, content_of(*checkpoint), out / "o", how, options);
      EXPECT_EQ(output->plan().values, 3U);
      output->write({});
      const bool to_item = layout == dcp::kMegatronItemLayout;
      EXPECT_EQ(std::filesystem::exists(out / "o/common.pt"), !to_item);
      EXPECT_EQ(test::to_text(test::read_file(out / "o/metadata.json")), to_item ? kNew : kOld);
      const auto written = open_checkpoint(out / "o");
      EXPECT_EQ(written->description().layout, layout);
      EXPECT_THAT(value_keys(*written),
                  testing::UnorderedElementsAre("rng_state/shard_0_1", "iteration", "args"));
      EXPECT_THAT(verified(*written), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace fsdp::formats
