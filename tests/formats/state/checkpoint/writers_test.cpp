// SPDX-License-Identifier: Apache-2.0
// Real checkpoints written again as one torch.save file and as safetensors: every element stays in
// its place.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"
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
using testing::IsEmpty;

void write_torch(const Checkpoint& checkpoint, const fs::path& path) {
  CopyOptions options;
  options.threads = 2;
  plan_torch_output(checkpoint, content_of(checkpoint), path, {.replace = false, .sync = false})
      ->write(options);
}

void write_safetensors(const Checkpoint& checkpoint, const fs::path& destination,
                       const safetensors::WriterOptions& how) {
  safetensors::plan_output(checkpoint, content_of(checkpoint), destination,
                           {.replace = false, .sync = false}, how, true)
      ->write({});
}

// Tensors by key: type, shape, elements.
std::map<std::string, std::tuple<DType, std::vector<std::int64_t>, std::vector<std::byte>>>
tensors_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::tuple<DType, std::vector<std::int64_t>, std::vector<std::byte>>> all;
  for (const TensorEntry& tensor : checkpoint.index().tensors) {
    all[tensor.key] = {tensor.dtype, tensor.shape, test::tensor_bytes(checkpoint, tensor)};
  }
  return all;
}

TEST(TorchSaveWriter, keeps_every_element_of_every_layout) {
  for (const char* path :
       {"2.11.0/shards/ckpt", "2.11.0/nested/ckpt", "2.11.0/odd_tensors/ckpt", "2.11.0/dtypes/ckpt",
        "2.11.0/zstd/ckpt", "2.11.0/rank_local_metadata/ckpt", "2.11.0/safetensors_items/ckpt",
        "2.11.0/hf_sharded/ckpt", "2.11.0/zip_pt/full.pt", "2.11.0/legacy_pt/full.pt",
        "2.11.0/parameters_pt/full.pt", "2.4.1/fsdp1/ckpt"}) {
    SCOPED_TRACE(path);
    const test::TempDir folder;
    const auto checkpoint = open_checkpoint(test::data_path(std::string("golden/") + path));
    write_torch(*checkpoint, folder / "full.pt");
    const auto again = open_checkpoint(folder / "full.pt");
    EXPECT_THAT(again->verify({}).findings, IsEmpty());
    EXPECT_EQ(again->verify({}).bytes_unchecked, 0U);
    auto expected = tensors_of(*checkpoint);
    auto found = tensors_of(*again);
    // A list that flattening kept whole may hold tensors: then the file has more tensors.
    for (const auto& [key, tensor] : expected) {
      std::string joined_key;
      for (const TensorEntry& entry : checkpoint->index().tensors) {
        if (entry.key == key) joined_key = joined(entry.path);
      }
      ASSERT_TRUE(found.contains(joined_key)) << joined_key;
      EXPECT_EQ(found[joined_key], tensor) << joined_key;
    }
  }
}

TEST(TorchSaveWriter, tensors_that_share_a_storage_share_it_again) {
  const test::TempDir folder;
  const auto checkpoint = open_checkpoint(test::data_path("golden/2.11.0/zip_pt/full.pt"));
  write_torch(*checkpoint, folder / "full.pt");
  const auto again = open_checkpoint(folder / "full.pt");
  std::map<std::string, std::uint64_t> offsets;
  for (const TensorEntry& tensor : again->index().tensors)
    offsets[tensor.key] = again->chunk(tensor, 0).storage_offset;
  EXPECT_EQ(offsets["base"], offsets["view"]);
  EXPECT_EQ(offsets["base"], offsets["tied"]);
}

TEST(SafetensorsWriter, keeps_every_element_of_every_layout) {
  for (const char* path :
       {"2.11.0/shards/ckpt", "2.11.0/hf_map/ckpt", "2.11.0/rank_local_metadata/ckpt",
        "2.11.0/threads/ckpt", "2.4.1/fsdp1/ckpt"}) {
    for (const auto& limit : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(16)}) {
      SCOPED_TRACE(path);
      const test::TempDir folder;
      const auto checkpoint = open_checkpoint(test::data_path(std::string("golden/") + path));
      write_safetensors(*checkpoint, folder / "out", {limit});
      const auto again = open_checkpoint(folder / "out");
      EXPECT_THAT(again->verify({}).findings, IsEmpty());
      EXPECT_EQ(tensors_of(*again), tensors_of(*checkpoint));
      if (!limit) continue;
      EXPECT_GT(again->index().files.size(), 1U);
      for (std::size_t f = 0; f < again->index().files.size(); ++f) {
        std::uint64_t bytes = 0;
        std::size_t count = 0;
        for (const TensorEntry& tensor : again->index().tensors) {
          if (tensor.chunks.location(0).file != f) continue;
          bytes += tensor.bytes();
          ++count;
        }
        EXPECT_TRUE(bytes <= *limit || count == 1) << bytes;
      }
    }
  }
}

TEST(SafetensorsWriter, writes_what_shares_its_bytes_once_and_says_so) {
  const auto checkpoint = open_checkpoint(test::data_path("golden/2.11.0/zip_pt/full.pt"));
  const safetensors::Writer writer(*checkpoint, content_of(*checkpoint), {});
  EXPECT_THAT(writer.tied(), ElementsAre(std::pair<std::string, std::string>("tied", "base")));
  EXPECT_THAT(writer.files()[0].header, testing::HasSubstr(R"("tied":"base")"));
}

TEST(SafetensorsWriter, names_the_tensor_whose_type_it_lacks) {
  test::DcpFolder folder;
  folder.metadata.tensors = {{"c", {0}, {}, "complex128"}};
  test::expect_error(ErrorCode::kUnsupported, "'c'", [&] {
    const auto checkpoint = folder.open();
    safetensors::Writer(*checkpoint, content_of(*checkpoint), {});
  });
}

}  // namespace
}  // namespace fsdp::formats
