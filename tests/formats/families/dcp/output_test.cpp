// SPDX-License-Identifier: Apache-2.0
// DCP folders written from real checkpoints and from made ones. tests/interop checks that their
// chunks are those of FSDP and that PyTorch loads them.
#include "formats/families/dcp/output.h"

#include <sys/resource.h>

#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/dcp/metadata.h"
#include "formats/families/dcp/metadata_writer.h"
#include "formats/front/open.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_bytes.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;

const OutputOptions kNoSync{.replace = false, .sync = false};

OutputPlan write_dcp(const Checkpoint& source, const fs::path& out, std::int64_t world_size,
                     dcp::ShardingChoice choice = {}) {
  DcpOutputOptions options;
  options.world_size = world_size;
  options.choice = std::move(choice);
  const auto output = plan_dcp_output(source, content_of(source), out, kNoSync, options);
  CopyOptions copy;
  copy.threads = 2;
  copy.max_buffer_bytes = 1U << 20U;
  output->write(copy);
  return output->plan();
}

using Tensors = std::map<std::string, std::tuple<DType, std::vector<std::int64_t>, std::string>>;
Tensors tensors_of(const Checkpoint& checkpoint) {
  Tensors all;
  for (const TensorEntry& tensor : checkpoint.index().tensors) {
    all[tensor.key] = {tensor.dtype, tensor.shape,
                       test::to_text(test::tensor_bytes(checkpoint, tensor))};
  }
  return all;
}

// Returns the rows of each chunk.
std::vector<std::int64_t> rows_of(const Checkpoint& checkpoint, const std::string& key) {
  std::vector<std::int64_t> rows;
  for (const TensorEntry& tensor : checkpoint.index().tensors) {
    if (tensor.key != key) continue;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      rows.push_back(tensor.chunks.box(c).size[0]);
  }
  return rows;
}

std::map<std::string, std::uint64_t> sizes_in(const fs::path& folder) {
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& entry : fs::directory_iterator(folder))
    sizes[entry.path().filename()] = entry.file_size();
  return sizes;
}

TEST(DcpOutput, keeps_every_element_at_every_world_size_and_writes_what_was_planned) {
  for (const char* path :
       {"2.11.0/shards/ckpt", "2.11.0/nested/ckpt", "2.11.0/odd_tensors/ckpt", "2.11.0/dtypes/ckpt",
        "2.11.0/zstd/ckpt", "2.11.0/rank_local_metadata/ckpt", "2.11.0/hf_sharded/ckpt",
        "2.11.0/zip_pt/full.pt", "2.11.0/empty_dict/ckpt", "2.15.0/fsdp2/ckpt"}) {
    SCOPED_TRACE(path);
    const auto source = open_checkpoint(test::data_path(std::string("golden/") + path));
    for (const std::int64_t world_size : {1, 2, 3, 50}) {
      const test::TempDir folder;
      const OutputPlan plan = write_dcp(*source, folder / "out", world_size);
      const auto written = open_checkpoint(folder / "out");
      EXPECT_EQ(tensors_of(*written), tensors_of(*source)) << world_size;
      VerifyOptions strict;
      EXPECT_TRUE(written->verify(strict).findings.empty());
      std::map<std::string, std::uint64_t> planned;
      for (const PlannedFile& file : plan.files) planned[file.name] = file.bytes;
      EXPECT_EQ(planned, sizes_in(folder / "out"));
      EXPECT_EQ(planned.size(), static_cast<std::size_t>(world_size) + 1);
    }
  }
}

TEST(DcpOutput, what_the_source_shows_to_be_whole_stays_whole_and_the_choice_overrides_it) {
  test::DcpFolder made;
  made.metadata.tensors.push_back(
      {"cut", {4, 2}, {made.chunk({0, 0}, {2, 2}), made.chunk({2, 0}, {2, 2}, "__1_0.distcp")}});
  made.metadata.tensors.push_back({"whole", {4, 2}, {made.chunk({0, 0}, {4, 2})}});
  const auto source = made.open();
  const test::TempDir folder;
  write_dcp(*source, folder / "a", 4);
  const auto a = open_checkpoint(folder / "a");
  EXPECT_THAT(rows_of(*a, "cut"), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(rows_of(*a, "whole"), ElementsAre(4));
  write_dcp(*source, folder / "b", 4, {globs_of({"wh*"}), globs_of({"cu?"})});
  const auto b = open_checkpoint(folder / "b");
  EXPECT_THAT(rows_of(*b, "cut"), ElementsAre(4));
  EXPECT_THAT(rows_of(*b, "whole"), ElementsAre(1, 1, 1, 1));
}

TEST(DcpOutput, a_choice_that_matches_nothing_or_contradicts_itself_is_refused) {
  const auto source = open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  const test::TempDir folder;
  test::expect_error(ErrorCode::kUsage, "glob 'nothing' of the tensors to cut matches no tensor",
                     [&] {
                       write_dcp(*source, folder / "out", 2, {globs_of({"nothing"}), {}});
                     });
  test::expect_error(ErrorCode::kUsage, "is chosen both to be cut and to be kept whole", [&] {
    write_dcp(*source, folder / "out", 2, {globs_of({"**"}), globs_of({"**"})});
  });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(DcpOutput, chunks_of_a_grid_are_joined_in_rows) {
  test::DcpFolder made;
  test::TensorSpec grid{"grid", {4, 6}, {}};
  for (const std::int64_t row : {2, 0})
    for (const std::int64_t column : {3, 0})
      grid.chunks.push_back(made.chunk({row, column}, {2, 3}));
  made.metadata.tensors.push_back(grid);
  const auto source = made.open();
  const test::TempDir folder;
  write_dcp(*source, folder / "out", 3, {globs_of({"grid"}), {}});
  const auto written = open_checkpoint(folder / "out");
  EXPECT_THAT(rows_of(*written, "grid"), ElementsAre(2, 2));
  EXPECT_EQ(tensors_of(*written), tensors_of(*source));
}

TEST(DcpOutput, damage_in_the_source_leaves_nothing) {
  test::DcpFolder made;
  made.metadata.tensors.push_back({"w", {64}, {made.chunk({0}, {64})}});
  made.write();
  // Flips a bit of the payload, which lies after the pickle: its CRC no longer matches.
  std::string bytes = made.files["__0_0.distcp"];
  const auto source_before = made.open();
  const ChunkData data = source_before->chunk(source_before->index().tensors[0], 0);
  bytes[data.file_offset + 5] = static_cast<char>(bytes[data.file_offset + 5] ^ 1);
  test::write_file(made.folder / "__0_0.distcp", bytes);
  const auto source = open_checkpoint(made.folder.path());
  const test::TempDir folder;
  test::expect_error(ErrorCode::kZipCrc, "'w'", [&] {
    write_dcp(*source, folder / "out", 2, {globs_of({"w"}), {}});
  });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DcpOutput, objects_that_are_no_dict_and_tensors_that_are_no_views_are_refused) {
  const test::TempDir folder;
  const auto bare = open_checkpoint(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt"));
  test::expect_error(ErrorCode::kUnsupported, "holds a dict",
                     [&] { write_dcp(*bare, folder / "out", 2); });
  const auto sparse = open_checkpoint(test::data_path("golden/2.11.0/sparse_pt/full.pt"));
  test::expect_error(ErrorCode::kUnsupported, "the tensor is sparse",
                     [&] { write_dcp(*sparse, folder / "out", 2); });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DcpOutput, paths_that_join_to_one_key_are_refused) {
  const auto source = open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  const Value content =
      Value::dict({{Value::string("a.b"), Value::integer(1)},
                   {Value::string("a"), Value::dict({{Value::string("b"), Value::integer(2)}})}});
  const test::TempDir folder;
  test::expect_error(ErrorCode::kKey, "'a.b': two paths",
                     [&] { plan_dcp_output(*source, content, folder / "out", kNoSync, {}); });
}

TEST(DcpOutput, tuples_are_values_and_lists_of_numbers_too) {
  const auto source = open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  const Value pair = Value::tuple({Value::integer(1), Value::dict({})});
  const Value content =
      Value::dict({{Value::string("pairs"), Value::list({pair, pair})},
                   {Value::string("numbers"), Value::list({Value::integer(3)})},
                   {Value::string("groups"), Value::list({Value::dict({}), Value::integer(4)})}});
  std::vector<std::string> keys;
  for (const Leaf& leaf : dcp::entries_of(content)) keys.push_back(leaf.key);
  // As in PyTorch, an empty mapping leaves no entry.
  EXPECT_THAT(keys, ElementsAre("pairs", "numbers", "groups.1"));
  EXPECT_EQ(dcp::entries_of(content)[0].value.items()[0].kind(), ValueKind::kTuple);
}

[[noreturn]] void reshard_with_few_descriptors() {
  rlimit few{};
  few.rlim_cur = few.rlim_max = 450;
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) std::exit(1);
  const auto source = open_checkpoint(test::data_path("golden/2.15.0/fsdp2/ckpt"));
  const test::TempDir folder;
  write_dcp(*source, folder / "out", 600);
  const auto written = open_checkpoint(folder / "out");
  std::exit(tensors_of(*written) == tensors_of(*source) ? 0 : 2);
}

// Runs in a separate process, because a lowered limit cannot be raised again.
TEST(DcpOutput, few_descriptors_suffice_for_many_ranks) {
  EXPECT_EXIT(reshard_with_few_descriptors(), testing::ExitedWithCode(0), "");
}

TEST(MetadataWriter, every_size_of_integer_and_batch_reads_back) {
  std::string stream;
  dcp::MetadataWriter writer([&](std::string_view block) { stream += block; });
  const std::vector<std::int64_t> sizes = {0,         255,       256,       65535,    65536,
                                           INT32_MAX, 1LL << 31, 1LL << 40, INT64_MAX};
  const std::vector<std::int64_t> shape = {5000, 2, 2, 3, 1};
  writer.begin_tensor("t", DType::kBFloat16, shape);
  for (std::int64_t row = 0; row < 5000; ++row) {
    const std::vector<std::int64_t> offset = {row, 0, 0, 0, 0};
    const std::vector<std::int64_t> size = {1, 2, 2, 3, 1};
    writer.chunk({offset, size});
  }
  writer.end_tensor();
  for (std::size_t v = 0; v < 2500; ++v) writer.value("v" + std::to_string(v));
  writer.begin_paths();
  writer.path(0, {"a", "b", std::int64_t{0}, "c"});
  for (std::size_t v = 0; v < 2500; ++v) writer.path(v + 1, {"v", std::int64_t(v)});
  writer.begin_items();
  for (std::size_t c = 0; c < 5000; ++c) {
    const std::vector<std::int64_t> offset = {static_cast<std::int64_t>(c), 0, 0, 0, 0};
    const std::string name = "__" + std::to_string(c % 700) + "_0.distcp";
    writer.tensor_item(0, c, offset, {c % 700, name, static_cast<std::uint64_t>(sizes[c % 8]), c});
  }
  for (std::size_t v = 0; v < 2500; ++v) writer.value_item(v + 1, {0, "__0_0.distcp", v, 7});
  writer.finish();

  const test::TempDir folder;
  test::write_file(folder / ".metadata", stream);
  const auto file = file_at(folder / ".metadata");
  const dcp::Metadata read = dcp::read_metadata(*file, ".metadata", {});
  EXPECT_TRUE(read.findings.empty());
  EXPECT_EQ(read.version, "1.0.0");
  ASSERT_EQ(read.index.tensors.size(), 1U);
  const TensorEntry& tensor = read.index.tensors[0];
  EXPECT_EQ(tensor.dtype, DType::kBFloat16);
  EXPECT_EQ(tensor.shape, shape);
  EXPECT_EQ(joined(tensor.path), "a.b.0.c");
  ASSERT_EQ(tensor.chunks.size(), 5000U);
  for (std::size_t c = 0; c < 5000; ++c) {
    ASSERT_EQ(tensor.chunks.box(c).offset[0], static_cast<std::int64_t>(c));
    ASSERT_EQ(tensor.chunks.location(c).offset, static_cast<std::uint64_t>(sizes[c % 8]));
    ASSERT_EQ(tensor.chunks.location(c).length, c);
    ASSERT_EQ(read.index.files[tensor.chunks.location(c).file].name,
              "__" + std::to_string(c % 700) + "_0.distcp");
  }
  ASSERT_EQ(read.index.values.size(), 2500U);
  EXPECT_EQ(read.index.values[2499].location.offset, 2499U);
}

TEST(TensorSource, finds_the_chunks_that_meet_a_box_and_keeps_those_used_last) {
  test::DcpFolder made;
  test::TensorSpec spec{"w", {10, 2}, {}};
  for (const std::int64_t row : {6, 0, 8, 2, 4})
    spec.chunks.push_back(made.chunk({row, 0}, {2, 2}));
  made.metadata.tensors.push_back(spec);
  const auto source = made.open();
  TensorSource chunks(*source, 0, std::make_shared<ChunkCache>());
  const auto begins = [&](std::int64_t begin, std::int64_t count) {
    std::vector<std::int64_t> found;
    for (const SourceChunk& chunk : chunks.chunks_that_meet({{begin, 0}, {count, 2}}))
      found.push_back(chunk.box.offset[0]);
    return found;
  };
  EXPECT_THAT(begins(0, 1), ElementsAre(0));
  EXPECT_THAT(begins(1, 4), ElementsAre(0, 2, 4));
  EXPECT_THAT(begins(9, 1), ElementsAre(8));
  EXPECT_THAT(begins(0, 10), ElementsAre(0, 2, 4, 6, 8));
  // The same chunk again: the file is not opened, so it does not matter that it is missing.
  EXPECT_THAT(begins(2, 2), ElementsAre(2));
  fs::resize_file(made.folder / "__0_0.distcp", 0);
  EXPECT_THAT(begins(3, 1), ElementsAre(2));
}

}  // namespace
}  // namespace fsdp::formats
