// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/torch_checkpointing/folder.h"
#include "formats/families/trainers/trainers.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_bytes.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

namespace fs = std::filesystem;

using testing::IsEmpty;

std::unique_ptr<Checkpoint> source(const std::string& name) {
  return open_checkpoint(test::data_path("golden/" + name));
}

std::unique_ptr<Output> planned(const Checkpoint& checkpoint, const Value& content,
                                const fs::path& path, std::int64_t world_size) {
  return torch_checkpointing::plan_output(
      checkpoint, content, path,
      {.output = {.replace = false, .sync = false}, .world_size = world_size});
}

// Tensors by key: type, shape, elements.
auto tensors_of(const Checkpoint& checkpoint, const std::string& above = {}) {
  std::map<std::string, std::tuple<DType, std::vector<std::int64_t>, std::vector<std::byte>>> all;
  for (const TensorEntry& tensor : checkpoint.index().tensors) {
    all[above + joined(tensor.path)] = {tensor.dtype, tensor.shape,
                                        test::tensor_bytes(checkpoint, tensor)};
  }
  return all;
}

TEST(TorchCheckpointingOutput, every_element_is_read_again) {
  // A state dict of tensors alone becomes the item `model`.
  for (const auto& [name, above] :
       std::map<std::string, std::string>{{"2.11.0/shards/ckpt", ""},
                                          {"2.11.0/odd_tensors/ckpt", "model."},
                                          {"2.15.0/fsdp2/ckpt", ""},
                                          {"2.11.0/dtypes/ckpt", "model."},
                                          {"frameworks/torch_checkpointing_boxes_w3/ckpt", ""}}) {
    for (const std::int64_t world_size : {1, 3}) {
      SCOPED_TRACE(name + " on " + std::to_string(world_size));
      const test::TempDir folder;
      const auto checkpoint = source(name);
      const auto output = planned(*checkpoint, content_of(*checkpoint), folder / "out", world_size);
      output->write({});
      const auto again = open_checkpoint(folder / "out");
      EXPECT_EQ(again->description().format, "torch-checkpointing");
      EXPECT_EQ(again->description().ranks, world_size);
      const VerifyReport report = again->verify({});
      EXPECT_THAT(report.findings, IsEmpty());
      EXPECT_EQ(tensors_of(*again), tensors_of(*checkpoint, above));
      EXPECT_EQ(again->index().values.size(), checkpoint->index().values.size());
      for (const PlannedFile& file : output->plan().files)
        EXPECT_EQ(fs::file_size(folder / "out" / file.name), file.bytes) << file.name;
    }
  }
}

TEST(TorchCheckpointingOutput, tied_tensors_share_a_storage_in_each_ranks_file) {
  const test::TempDir folder;
  const auto checkpoint = source("2.11.0/zip_pt/full.pt");
  planned(*checkpoint, content_of(*checkpoint), folder / "out", 2)->write({});
  const auto again = open_checkpoint(folder / "out");
  std::map<std::string, std::uint64_t> offsets;
  for (const TensorEntry& tensor : again->index().tensors) {
    if (tensor.chunks.size() != 0)
      offsets[joined(tensor.path)] = again->chunk(tensor, 0).file_offset;
  }
  EXPECT_EQ(offsets.at("base"), offsets.at("tied"));
}

TEST(TorchCheckpointingOutput, what_the_format_cannot_say_is_refused) {
  const test::TempDir folder;
  const auto checkpoint = source("2.11.0/shards/ckpt");
  const auto refused = [&](const Value& content, const std::string& why) {
    SCOPED_TRACE(why);
    test::expect_error(ErrorCode::kUnsupported, why,
                       [&] { planned(*checkpoint, content, folder / "out", 2); });
  };
  const auto under = [](Value key, Value value) {
    return Value::dict({{std::move(key), std::move(value)}});
  };
  const Value one = Value::integer(1);
  refused(one, "is not a mapping");
  refused(under(one, one), "a key that is not a text cannot name a file");
  for (const std::string& name : {std::string(), std::string("a/b"), std::string(".."),
                                  std::string("a\0b", 3), std::string(201, 'a')})
    refused(under(Value::string(name), one), "cannot name a file");
  const Value tensor = *content_of(*checkpoint).find("grid");
  refused(under(Value::string("model"), under(Value::floating(0.5), tensor)),
          "neither a text nor an integer");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace fsdp::formats::torch_checkpointing
