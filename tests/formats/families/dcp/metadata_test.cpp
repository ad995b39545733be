// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/metadata.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/metadata_builder.h"

namespace fsdp::formats::dcp {
namespace {

using test::call;
using test::ChunkSpec;
using test::dict_of;
using test::global;
using test::integer;
using test::ItemSpec;
using test::kMetadataModule;
using test::lines;
using test::MetadataSpec;
using test::none;
using test::numbers;
using test::proto;
using test::record;
using test::text;
using test::tuple_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

Metadata read(const std::string& pickle, const std::set<std::string>& allowed = {}) {
  const auto bytes = test::to_bytes(pickle);
  return read_metadata(MemorySource(bytes), ".metadata", allowed);
}

// A tensor w [4, 3] of two chunks of two rows, and a value.
MetadataSpec sound() {
  MetadataSpec spec;
  spec.tensors = {{"w",
                   {4, 3},
                   {{{0, 0}, {2, 3}, {"__0_0.distcp", 0, 100, {}}},
                    {{2, 0}, {2, 3}, {"__1_0.distcp", 0, 90, {}}}}}};
  spec.values = {{"step", {"__0_0.distcp", 100, 50, {}}}};
  return spec;
}

TEST(DcpMetadata, of_a_sound_folder_becomes_its_index) {
  MetadataSpec spec = sound();
  spec.version = text("1.0.0");
  spec.planner_data =
      test::planner_data({{"w", {text("model"), integer(3), text("w")}}, {"step", {text("step")}}});
  const Metadata metadata = read(spec.pickle());
  EXPECT_THAT(lines(metadata.findings), IsEmpty());
  EXPECT_EQ(metadata.version, "1.0.0");
  EXPECT_TRUE(metadata.nested);
  ASSERT_EQ(metadata.index.tensors.size(), 1U);
  const TensorEntry& w = metadata.index.tensors[0];
  EXPECT_EQ(w.key, "w");
  EXPECT_EQ(w.path, (KeyPath{"model", std::int64_t{3}, "w"}));
  EXPECT_EQ(w.dtype, DType::kFloat32);
  EXPECT_THAT(w.shape, ElementsAre(4, 3));
  ASSERT_EQ(w.chunks.size(), 2U);
  EXPECT_THAT(w.chunks.box(1).offset, ElementsAre(2, 0));
  EXPECT_THAT(w.chunks.box(1).size, ElementsAre(2, 3));
  EXPECT_EQ(metadata.index.files[w.chunks.location(1).file].name, "__1_0.distcp");
  EXPECT_EQ(metadata.index.files[w.chunks.location(1).file].rank, 1);
  EXPECT_EQ(w.chunks.location(1).length, 90U);
  ASSERT_EQ(metadata.index.values.size(), 1U);
  EXPECT_EQ(metadata.index.values[0].location.offset, 100U);
}

TEST(DcpMetadata, items_are_found_by_offset_whatever_their_order) {
  MetadataSpec spec = sound();
  std::swap(spec.tensors[0].chunks[0], spec.tensors[0].chunks[1]);
  std::vector<ChunkSpec>& chunks = spec.tensors[0].chunks;
  // storage_data lists the other one first.
  for (ChunkSpec& chunk : chunks) chunk.stored = false;
  for (const std::size_t c : {1U, 0U}) {
    spec.more_items.emplace_back(test::item_key("w", chunks[c].offsets), chunks[c].item.opcodes());
  }
  const Metadata metadata = read(spec.pickle());
  EXPECT_THAT(lines(metadata.findings), IsEmpty());
  const ChunkList& read_chunks = metadata.index.tensors[0].chunks;
  EXPECT_EQ(metadata.index.files[read_chunks.location(0).file].name, "__1_0.distcp");
  EXPECT_EQ(metadata.index.files[read_chunks.location(1).file].name, "__0_0.distcp");
}

TEST(DcpMetadata, of_any_version_of_pytorch_and_python_is_read) {
  const std::string properties = tuple_of(
      {global("torch", "bfloat16"),
       call(global("torch.serialization", "_get_layout"), {text("torch.strided")}), "\x89",
       call(global("builtins", "getattr"),
            {global("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
             text("TORCH_CONTIGUOUS_FORMAT")}),
       "\x89", none()});
  MetadataSpec spec = sound();
  spec.tensors[0].properties = properties;  // six: strides, of 2.15
  spec.storage_meta =
      record(kMetadataModule, "StorageMeta",
             dict_of({{text("checkpoint_id"),
                       call(global("pathlib", "PosixPath"), {text("/"), text("tmp"), text("a")})},
                      {text("save_id"), text("94421e38")},
                      {text("load_id"), none()},
                      {text("modules"), test::list_of({})}}));
  const Metadata metadata = read(spec.pickle());
  EXPECT_THAT(lines(metadata.findings), IsEmpty());
  EXPECT_EQ(metadata.index.tensors[0].dtype, DType::kBFloat16);
  EXPECT_FALSE(metadata.nested);
}

TEST(DcpMetadata, damage_that_leaves_the_rest_readable_is_a_finding) {
  struct Case {
    const char* name;
    std::function<void(MetadataSpec&)> damage;
    const char* begin;
    const char* fragment;
  };
  const std::vector<Case> cases = {
      {"M4 chunk without item", [](MetadataSpec& m) { m.tensors[0].chunks[1].stored = false; },
       "CHUNK_MISSING .metadata: 'w': ", "no item is stored for the chunk [2:4, 0:3]"},
      {"M4 value without item", [](MetadataSpec& m) { m.values[0].stored = false; },
       "CHUNK_MISSING .metadata: 'step': ", "no item is stored for the value"},
      {"M5 item of no key",
       [](MetadataSpec& m) {
         m.more_items.emplace_back(test::item_key("gone", test::Numbers{0}), ItemSpec{}.opcodes());
       },
       "ORPHAN .metadata: 'gone': ", "a key that state_dict_metadata lacks"},
      {"M5 item where no chunk begins",
       [](MetadataSpec& m) {
         m.more_items.emplace_back(test::item_key("w", test::Numbers{1, 0}), ItemSpec{}.opcodes());
       },
       "ORPHAN .metadata: 'w': ", "stored at [1, 0], where no chunk begins"},
      {"M5 a tensor's item under a value's key",
       [](MetadataSpec& m) {
         m.more_items.emplace_back(test::item_key("step", test::Numbers{0}), ItemSpec{}.opcodes());
       },
       "ORPHAN .metadata: 'step': ", "an item of a tensor is stored under the key of a value"},
      {"two items for a value",
       [](MetadataSpec& m) {
         m.more_items.emplace_back(test::item_key("step", {}), ItemSpec{}.opcodes());
       },
       "KEY .metadata: 'step': ", "two items are stored for one value"},
      {"M10 negative offset",
       [](MetadataSpec& m) {
         m.tensors[0].chunks[1].offsets = {-2, 0};
       },
       "BOUNDS .metadata: 'w': ", "chunk at [-2, 0] of size [2, 3] has a negative number"},
      {"M10 negative size of a chunk",
       [](MetadataSpec& m) {
         m.tensors[0].chunks[1].sizes = {2, -3};
       },
       "BOUNDS .metadata: 'w': ", "of size [2, -3] has a negative number"},
      {"M10 negative size of the tensor",
       [](MetadataSpec& m) {
         m.tensors[0].size = {-4, 3};
       },
       "BOUNDS .metadata: 'w': ", "shape [-4, 3] has a negative dimension"},
      {"M23 version", [](MetadataSpec& m) { m.version = text("99.9"); },
       "warning VERSION .metadata: ", "version is '99.9', expected '1.0.0'"},
      {"M30 sparse", [](MetadataSpec& m) { m.tensors[0].layout = "torch.sparse_coo"; },
       "unknown UNSUPPORTED .metadata: 'w': ",
       "layout is 'torch.sparse_coo', expected 'torch.strided'"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    MetadataSpec spec = sound();
    c.damage(spec);
    EXPECT_THAT(lines(read(spec.pickle()).findings),
                ElementsAre(AllOf(StartsWith(c.begin), HasSubstr(c.fragment))));
  }
}

TEST(DcpMetadata, a_chunk_of_another_rank_leaves_its_item_without_one) {  // M11
  const auto damaged = [](const test::Numbers& offsets, const test::Numbers& sizes) {
    MetadataSpec spec = sound();
    spec.tensors[0].chunks[1].offsets = offsets;
    spec.tensors[0].chunks[1].sizes = sizes;
    return lines(read(spec.pickle()).findings);
  };
  EXPECT_THAT(damaged({2}, {2, 3}), ElementsAre("RANK .metadata: 'w': chunk at [2] of size [2, 3] "
                                                "has another rank than the tensor of shape [4, 3]",
                                                StartsWith("ORPHAN .metadata: 'w': ")));
  EXPECT_THAT(damaged({2, 0}, {6}),
              ElementsAre(HasSubstr("RANK .metadata: 'w': chunk at [2, 0] of size [6] has"),
                          StartsWith("ORPHAN .metadata: 'w': ")));
}

TEST(DcpMetadata, findings_of_a_kind_are_limited) {
  MetadataSpec spec;
  for (int i = 0; i < 50; ++i) spec.values.push_back({"v" + std::to_string(i), {}, false});
  EXPECT_EQ(read(spec.pickle()).findings.size(), 20U);
}

TEST(DcpMetadata, what_is_no_metadata_is_refused) {
  struct Case {
    const char* name;
    std::function<void(MetadataSpec&)> damage;
    ErrorCode code;
    const char* fragment;
  };
  const std::vector<Case> cases = {
      {"M3 storage_data None", [](MetadataSpec& m) { m.storage_data = none(); },
       ErrorCode::kMetaType, "storage_data is not a dict"},
      {"M3 storage_data a list", [](MetadataSpec& m) { m.storage_data = test::list_of({}); },
       ErrorCode::kMetaType, "storage_data is not a dict"},
      {"state_dict_metadata None", [](MetadataSpec& m) { m.state_dict_metadata = none(); },
       ErrorCode::kMetaType, "state_dict_metadata is not a dict"},
      {"an entry that is a number",
       [](MetadataSpec& m) { m.more_entries.emplace_back(text("n"), integer(7)); },
       ErrorCode::kMetaType, "'n' is neither a tensor nor bytes"},
      {"an entry that is another record",
       [](MetadataSpec& m) { m.more_entries.emplace_back(text("n"), ItemSpec{}.opcodes()); },
       ErrorCode::kMetaType, "'n' is neither a tensor nor bytes"},
      {"a key that is a number",
       [](MetadataSpec& m) { m.more_entries.emplace_back(integer(7), m.tensors[0].opcodes()); },
       ErrorCode::kKey, "a key is not text"},
      {"an item under a text",
       [](MetadataSpec& m) { m.more_items.emplace_back(text("w"), ItemSpec{}.opcodes()); },
       ErrorCode::kKey, "a key is not a MetadataIndex"},
      {"an item that is a number",
       [](MetadataSpec& m) { m.more_items.emplace_back(test::item_key("x", {}), integer(1)); },
       ErrorCode::kType, "a value is not a _StorageInfo"},
      {"M12 product of sizes",
       [](MetadataSpec& m) {
         m.tensors[0].size = {std::int64_t{1} << 40, std::int64_t{1} << 40};
       },
       ErrorCode::kOverflow, "'w': number of elements"},
      {"M12 product of sizes and item size",
       [](MetadataSpec& m) {
         m.tensors[0].size = {std::int64_t{1} << 62, 3};
       },
       ErrorCode::kOverflow, "'w': number of"},
      {"65 dimensions", [](MetadataSpec& m) { m.tensors[0].size = test::Numbers(65, 1); },
       ErrorCode::kBuild, "TensorStorageMetadata: field size: expected at most 64 dimensions"},
      {"M20 negative offset of an item", [](MetadataSpec& m) { m.values[0].item.offset = -1; },
       ErrorCode::kExtent, "item of '__0_0.distcp' at byte -1 has 50 bytes"},
      {"M20 negative length of an item", [](MetadataSpec& m) { m.values[0].item.length = -1; },
       ErrorCode::kExtent, "at byte 100 has -1 bytes"},
      {"M26 key of 1 MB", [](MetadataSpec& m) { m.tensors[0].key = std::string(1 << 20, 'k'); },
       ErrorCode::kName, "has 1048576 bytes, at most 65536"},
      {"M26 key of 1 MB without item",
       [](MetadataSpec& m) {
         m.values = {{std::string(1 << 20, 'k'), {}, false}};
       },
       ErrorCode::kName, "has 1048576 bytes, at most 65536"},
      {"P7 global", [](MetadataSpec& m) { m.version = global("os", "system"); }, ErrorCode::kGlobal,
       "global 'os.system' is not allowed"},
      {"P7 a class of torch of no use here",
       [](MetadataSpec& m) { m.version = global("torch", "load"); }, ErrorCode::kGlobal,
       "'torch.load'"},
      {"P11 torch.Size of a number",
       [](MetadataSpec& m) { m.version = call(global("torch", "Size"), {integer(1)}); },
       ErrorCode::kReduce, "torch.Size: expected one tuple"},
      {"P11 layout of nothing",
       [](MetadataSpec& m) { m.version = call(global("torch.serialization", "_get_layout"), {}); },
       ErrorCode::kReduce, "_get_layout: expected one text"},
      {"P11 a dtype called",
       [](MetadataSpec& m) { m.version = call(global("torch", "float32"), {}); },
       ErrorCode::kReduce, "call of 'torch.float32': not expected in a .metadata"},
      {"P11 a record called",
       [](MetadataSpec& m) { m.version = call(global(kMetadataModule, "Metadata"), {}); },
       ErrorCode::kReduce, "not expected in a .metadata"},
      {"P11 object of no class",
       [](MetadataSpec& m) { m.version = global("torch", "Size") + ")\x81"; }, ErrorCode::kReduce,
       "object of 'torch.Size': not expected in a .metadata"},
      {"P11 object with arguments",
       [](MetadataSpec& m) {
         m.version = global(kMetadataModule, "MetadataIndex") + tuple_of({integer(1)}) + "\x81";
       },
       ErrorCode::kReduce, "expected no arguments"},
      {"P12 state is not a dict",
       [](MetadataSpec& m) {
         m.version = record(kMetadataModule, "ChunkStorageMetadata", integer(1));
       },
       ErrorCode::kBuild, "ChunkStorageMetadata: state is not a dict"},
      {"P12 state of a record without one",
       [](MetadataSpec& m) {
         m.version = record(kMetadataModule, "BytesStorageMetadata", dict_of({}));
       },
       ErrorCode::kBuild, "has none"},
      {"P12 field missing",
       [](MetadataSpec& m) {
         m.version = record(kMetadataModule, "ChunkStorageMetadata", dict_of({}));
       },
       ErrorCode::kBuild, "field offsets is missing"},
      {"P12 four properties",
       [](MetadataSpec& m) {
         m.tensors[0].properties = tuple_of({none(), none(), none(), none()});
       },
       ErrorCode::kBuild, "TensorProperties: expected 5 or 6 fields, found 4"},
      {"P12 seven properties",
       [](MetadataSpec& m) {
         m.tensors[0].properties = tuple_of(std::vector<std::string>(7, none()));
       },
       ErrorCode::kBuild, "found 7"},
      {"P28 dtype is a text",
       [](MetadataSpec& m) {
         m.tensors[0].properties =
             tuple_of({text("torch.float32"), none(), none(), none(), none()});
       },
       ErrorCode::kType, "TensorProperties: field dtype is not a dtype"},
      {"P28 a dimension is True",
       [](MetadataSpec& m) {
         m.version = record(kMetadataModule, "ChunkStorageMetadata",
                            dict_of({{text("offsets"), tuple_of({"\x88"})},
                                     {text("sizes"), tuple_of({integer(1)})}}));
       },
       ErrorCode::kType, "field offsets: a dimension is not an integer"},
      {"P28 sizes is a list",
       [](MetadataSpec& m) {
         m.version =
             record(kMetadataModule, "ChunkStorageMetadata",
                    dict_of({{text("offsets"), tuple_of({})}, {text("sizes"), test::list_of({})}}));
       },
       ErrorCode::kBuild, "field sizes: expected a torch.Size"},
      {"P28 chunks is a tuple",
       [](MetadataSpec& m) {
         m.version = record(
             kMetadataModule, "TensorStorageMetadata",
             dict_of({{text("properties"),
                       record(kMetadataModule, "TensorProperties",
                              tuple_of({global("torch", "int8"), none(), none(), none(), none()}))},
                      {text("size"), tuple_of({})},
                      {text("chunks"), tuple_of({})}}));
       },
       ErrorCode::kBuild, "field chunks: expected a list"},
      {"P28 fqn is bytes",
       [](MetadataSpec& m) {
         m.more_items.emplace_back(
             record(kMetadataModule, "MetadataIndex", dict_of({{text("fqn"), integer(1)}})),
             ItemSpec{}.opcodes());
       },
       ErrorCode::kBuild, "MetadataIndex: field fqn: expected a text"},
      {"P28 length is a float",
       [](MetadataSpec& m) {
         m.version = record(test::kFilesystemModule, "_StorageInfo",
                            dict_of({{text("relative_path"), text("a")},
                                     {text("offset"), integer(0)},
                                     {text("length"), "G" + std::string(8, '\0')}}));
       },
       ErrorCode::kBuild, "_StorageInfo: field length: expected an integer"},
      {"transforms are not a list",
       [](MetadataSpec& m) { m.values[0].item.transforms = text("stream.zstd/1"); },
       ErrorCode::kBuild, "transform_descriptors: expected a list of texts"},
      {"a transform is not a text",
       [](MetadataSpec& m) { m.values[0].item.transforms = test::list_of({integer(1)}); },
       ErrorCode::kBuild, "transform_descriptors: expected a list of texts"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    MetadataSpec spec = sound();
    c.damage(spec);
    test::expect_error(c.code, c.fragment, [&] { read(spec.pickle()); });
  }
}

TEST(DcpMetadata, a_pickle_of_something_else_is_no_metadata) {
  test::expect_error(ErrorCode::kMetaType, "holds no Metadata", [] { read(proto(2, "}")); });
  test::expect_error(ErrorCode::kMetaType, "holds no Metadata",
                     [] { read(proto(2, global(kMetadataModule, "Metadata") + ")\x81")); });
  test::expect_error(ErrorCode::kEmpty, "", [] { read(""); });  // P1
  test::expect_error(ErrorCode::kTrailing, "",
                     [] { read(sound().pickle() + sound().pickle()); });                      // P29
  test::expect_error(ErrorCode::kPersid, "", [] { read(proto(2, text("storage") + "Q")); });  // P25
}

TEST(DcpMetadata, a_global_that_is_allowed_makes_planner_data_unusable_and_nothing_else) {
  MetadataSpec spec = sound();
  spec.planner_data = dict_of({{text("w"), call(global("mine", "Plan"), {integer(1)})}});
  test::expect_error(ErrorCode::kGlobal, "global 'mine.Plan' is not allowed",
                     [&] { read(spec.pickle()); });
  const Metadata metadata = read(spec.pickle(), {"mine.Plan"});
  EXPECT_FALSE(metadata.nested);
  EXPECT_EQ(metadata.index.tensors[0].path, KeyPath{"w"});
  EXPECT_THAT(lines(metadata.findings), IsEmpty());
}

TEST(DcpMetadata, planner_data_that_is_missing_or_no_dict_is_warned_of_and_none_is_not) {
  MetadataSpec spec = sound();
  spec.planner_data.clear();
  EXPECT_THAT(read(spec.pickle()).findings, IsEmpty());
  spec.without_planner_data = true;
  const Metadata missing = read(spec.pickle());
  ASSERT_EQ(missing.findings.size(), 1U);
  EXPECT_EQ(missing.findings[0].severity, Finding::Severity::kWarning);
  EXPECT_EQ(missing.findings[0].code, ErrorCode::kMetaType);
  EXPECT_THAT(missing.findings[0].message, HasSubstr("planner_data is missing"));
  EXPECT_FALSE(missing.nested);
  spec.without_planner_data = false;
  spec.planner_data = integer(7);
  const Metadata number = read(spec.pickle());
  ASSERT_EQ(number.findings.size(), 1U);
  EXPECT_THAT(number.findings[0].message,
              HasSubstr("planner_data is int, expected a dict or None"));
}

TEST(DcpMetadata, a_path_of_more_steps_than_any_state_dict_has_is_refused) {
  MetadataSpec spec = sound();
  spec.planner_data = test::planner_data({{"w", std::vector<std::string>(100'000, text("a"))}});
  test::expect_error(ErrorCode::kLimitDepth, "'w': its path has 100000 steps",
                     [&] { read(spec.pickle()); });
}

TEST(DcpMetadata, cut_at_any_byte_is_refused) {  // P2
  const std::string pickle = sound().pickle();
  for (std::size_t length = 0; length < pickle.size(); ++length) {
    EXPECT_THROW(read(pickle.substr(0, length)), Error) << length;
  }
}

TEST(DcpMetadata, of_several_ranks_joins_their_chunks) {
  MetadataSpec first = sound();
  first.tensors[0].chunks.pop_back();
  MetadataSpec second = sound();
  second.tensors[0].chunks.erase(second.tensors[0].chunks.begin());
  second.values[0].item.path = "__1_0.distcp";
  second.tensors.push_back(
      {"other", {1}, {{{0}, {1}, {"__1_0.distcp", 200, 5, test::list_of({text("t/1")})}}}});
  Metadata whole = read(first.pickle());
  merge_metadata(whole, read(second.pickle()));
  ASSERT_EQ(whole.index.tensors.size(), 2U);
  const ChunkList& chunks = whole.index.tensors[0].chunks;
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_THAT(chunks.box(1).offset, ElementsAre(2, 0));
  EXPECT_EQ(whole.index.files[chunks.location(1).file].name, "__1_0.distcp");
  EXPECT_EQ(whole.index.values.size(), 1U);  // replicated
  const Location& other = whole.index.tensors[1].chunks.location(0);
  EXPECT_THAT(whole.index.transforms[other.transform], ElementsAre("t/1"));

  // Content that is there already is not doubled.
  merge_metadata(whole, read(second.pickle()));
  EXPECT_EQ(whole.index.tensors[0].chunks.size(), 2U);
  EXPECT_TRUE(whole.replicas.empty());
}

TEST(DcpMetadata, of_several_ranks_knows_the_replicas) {
  MetadataSpec other = sound();
  for (auto& chunk : other.tensors[0].chunks) chunk.item.path = "__2_0.distcp";
  Metadata whole = read(sound().pickle());
  merge_metadata(whole, read(other.pickle()));
  const ChunkList& chunks = whole.index.tensors[0].chunks;
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(whole.index.files[chunks.location(1).file].name, "__1_0.distcp");
  ASSERT_THAT(whole.replicas, SizeIs(1));
  const std::vector<Replica>& replicas = whole.replicas.at("w");
  ASSERT_THAT(replicas, SizeIs(2));
  EXPECT_EQ(replicas[1].chunk, 1U);
  EXPECT_EQ(whole.index.files[replicas[1].location.file].name, "__2_0.distcp");
  EXPECT_EQ(replicas[1].location.offset, chunks.location(1).offset);

  // A box of another size at the same place is not a replica: it overlaps.
  other.tensors[0].chunks.pop_back();
  other.tensors[0].chunks[0].sizes = {1, 3};
  merge_metadata(whole, read(other.pickle()));
  EXPECT_EQ(whole.index.tensors[0].chunks.size(), 3U);
}

TEST(DcpMetadata, of_ranks_that_disagree_is_refused) {
  MetadataSpec other = sound();
  other.tensors[0].dtype = "float16";
  test::expect_error(ErrorCode::kDtype, "'w': one rank has float32, another float16", [&] {
    Metadata whole = read(sound().pickle());
    merge_metadata(whole, read(other.pickle()));
  });
  other = sound();
  other.tensors[0].size = {8, 3};
  test::expect_error(ErrorCode::kShape, "'w': one rank has shape [4, 3], another [8, 3]", [&] {
    Metadata whole = read(sound().pickle());
    merge_metadata(whole, read(other.pickle()));
  });
  other = sound();
  other.tensors[0].key = "step";
  other.values.clear();
  test::expect_error(ErrorCode::kMetaType, "'step': is a tensor on one rank and a value on another",
                     [&] {
                       Metadata whole = read(sound().pickle());
                       merge_metadata(whole, read(other.pickle()));
                     });
}

}  // namespace
}  // namespace fsdp::formats::dcp
