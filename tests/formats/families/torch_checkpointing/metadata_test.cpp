// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch_checkpointing/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/containers/pickle/writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

using testing::ElementsAre;

using Numbers = std::vector<std::int64_t>;

Value text(std::string value) {
  return Value::string(std::move(value));
}
Value list(const Numbers& numbers) {
  std::vector<Value> items;
  for (const std::int64_t number : numbers) items.push_back(Value::integer(number));
  return Value::list(std::move(items));
}
Value dict(std::vector<std::pair<std::string, Value>> members) {
  std::vector<Value::Entry> entries;
  for (auto& [name, value] : members) entries.emplace_back(text(name), std::move(value));
  return Value::dict(std::move(entries));
}

// The metadata of one tensor; each test changes a member.
struct Parts {
  Value version = text("2.0");
  Value world_size = Value::integer(2);
  std::string path = R"(["layer",0,"weight"])";
  std::string type = "DTensorShardingMetadata";
  Value shape = list({5, 4});
  std::string dtype = "torch.bfloat16";
  Value mesh_shape = list({2});
  Value mesh_data = list({1, 0});
  Value placements = Value::list({dict({{"type", text("Shard")}, {"dim", Value::integer(0)}})});
  Value ranks = list({0, 1});
  std::vector<std::pair<std::string, Value>> more_data;
  std::vector<Value::Entry> layouts = {{Value::integer(0), Value()}, {Value::integer(1), Value()}};

  Value group() const {
    std::vector<std::pair<std::string, Value>> data = {
        {"global_shape", shape},
        {"dtype", text(dtype)},
        {"mesh_spec", dict({{"mesh_shape", mesh_shape}, {"mesh_data", mesh_data}})},
        {"placements", placements}};
    data.insert(data.end(), more_data.begin(), more_data.end());
    return dict({{"sharding_metadata", dict({{"type", text(type)}, {"data", dict(data)}})},
                 {"ranks", ranks}});
  }
  Value root() const {
    return dict(
        {{"metadata",
          dict({{"model", dict({{"nested_path_to_metadata", dict({{path, Value::list({group()})}})},
                                {"rank_to_layout_info", Value::dict(layouts)}})}})},
         {"world_size", world_size},
         {"version", version}});
  }
};

Metadata read(const Value& root) {
  const auto bytes = test::to_bytes(write_pickle(root));
  return read_metadata(MemorySource(bytes));
}

std::vector<std::string> boxes(const Sharding& sharding, std::int64_t rank) {
  std::vector<std::string> out;
  for (const HeldBox& held : sharding.boxes_of(rank)) out.push_back(box_text(held.box.view()));
  return out;
}

TEST(TorchCheckpointingMetadata, placements_and_mesh_give_each_ranks_box) {
  const Metadata metadata = read(Parts().root());
  EXPECT_EQ(metadata.version, "2.0");
  EXPECT_EQ(metadata.world_size, 2);
  ASSERT_EQ(metadata.items.size(), 1U);
  const Item& item = metadata.items[0];
  EXPECT_EQ(item.name, "model");
  EXPECT_EQ(item.file(1).path, "model_1.pt");
  const TensorLayout* tensor = item.find("layer.0.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_THAT(tensor->path, ElementsAre("layer", "0", "weight"));
  const Sharding* sharding = tensor->shardings->of_rank(1);
  ASSERT_NE(sharding, nullptr);
  EXPECT_EQ(tensor->shardings->of_rank(2), nullptr);
  EXPECT_EQ(sharding->dtype, DType::kBFloat16);
  EXPECT_FALSE(sharding->replicated());
  // Rank 1 stands first in the mesh.
  EXPECT_THAT(boxes(*sharding, 1), ElementsAre("[0:3, 0:4]"));
  EXPECT_THAT(boxes(*sharding, 0), ElementsAre("[3:5, 0:4]"));
  EXPECT_TRUE(item.needed.at(0));
}

TEST(TorchCheckpointingMetadata, a_mesh_of_two_dimensions_is_row_major) {
  Parts parts;
  parts.world_size = Value::integer(4);
  parts.ranks = list({0, 1, 2, 3});
  parts.mesh_shape = list({2, 2});
  parts.mesh_data = list({0, 1, 2, 3});
  parts.placements = Value::list({dict({{"type", text("StridedShard")},
                                        {"dim", Value::integer(0)},
                                        {"split_factor", Value::integer(2)}}),
                                  dict({{"type", text("Shard")}, {"dim", Value::integer(0)}})});
  for (const std::int64_t rank : {2, 3}) parts.layouts.emplace_back(Value::integer(rank), Value());
  const Metadata metadata = read(parts.root());
  const Sharding& sharding = *metadata.items[0].tensors[0].shardings->groups[0];
  EXPECT_THAT(boxes(sharding, 1), ElementsAre("[3:4, 0:4]"));
  EXPECT_THAT(boxes(sharding, 2), ElementsAre("[2:3, 0:4]"));
}

TEST(TorchCheckpointingMetadata, listed_boxes_are_those_of_each_rank) {
  Parts parts;
  parts.type = "default_tensor_v1";
  parts.more_data = {{"global_offsets", Value::list({list({0, 0}), list({4, 2})})},
                     {"local_offsets", Value::list({list({1, 0}), list({0, 0})})},
                     {"local_sizes", Value::list({list({2, 4}), list({1, 2})})}};
  const Metadata metadata = read(parts.root());
  const Sharding& sharding = *metadata.items[0].tensors[0].shardings->groups[0];
  EXPECT_FALSE(sharding.replicated());
  EXPECT_THAT(boxes(sharding, 0), ElementsAre("[0:2, 0:4]", "[4:5, 2:4]"));
  EXPECT_THAT(sharding.boxes_of(0)[0].local_offset, ElementsAre(1, 0));
}

TEST(TorchCheckpointingMetadata, a_layout_names_file_and_serialization) {
  Parts parts;
  const auto layout = [](const char* path, const char* type) {
    return dict(
        {{"file_path", text(path)}, {"serialization_format", dict({{"type", text(type)}})}});
  };
  // Ranks may be text.
  parts.layouts = {{text("0"), layout("a/0.safetensors", "SafetensorsSerialization")},
                   {text("1"), layout("b.raw", "RawSerialization")}};
  const Metadata metadata = read(parts.root());
  EXPECT_EQ(metadata.items[0].file(0).path, "a/0.safetensors");
  EXPECT_EQ(metadata.items[0].file(0).serialization, Serialization::kSafetensors);
  EXPECT_EQ(metadata.items[0].file(1).serialization, Serialization::kOther);
  parts.layouts[1].second = layout("a/0.safetensors", "SafetensorsSerialization");
  test::expect_error(ErrorCode::kMetaType, "have the file 'a/0.safetensors'",
                     [&] { read(parts.root()); });
}

TEST(TorchCheckpointingMetadata, whole_tensors_are_replicated) {
  Parts parts;
  parts.placements = Value::list({dict({{"type", text("Replicate")}})});
  const Metadata metadata = read(parts.root());
  EXPECT_TRUE(metadata.items[0].tensors[0].shardings->groups[0]->replicated());
  EXPECT_THAT(boxes(*metadata.items[0].tensors[0].shardings->groups[0], 1),
              ElementsAre("[0:5, 0:4]"));
  EXPECT_TRUE(metadata.items[0].needed.at(1));
}

TEST(TorchCheckpointingMetadata, every_way_to_be_wrong_is_named) {
  struct Case {
    ErrorCode code;
    const char* fragment;
    void (*change)(Parts&);
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const Case cases[] = {
      {ErrorCode::kUnsupported, "version '9'", [](Parts& p) { p.version = text("9"); }},
      {ErrorCode::kMetaType, "'version' is a", [](Parts& p) { p.version = Value::integer(2); }},
      {ErrorCode::kBounds, "world_size is 0", [](Parts& p) { p.world_size = Value::integer(0); }},
      {ErrorCode::kBounds, "world_size is", [](Parts& p) { p.world_size = Value::integer(kHuge); }},
      {ErrorCode::kMetaType, "no layout for rank 2",
       [](Parts& p) { p.world_size = Value::integer(3); }},
      {ErrorCode::kBounds, "rank 1 of 1", [](Parts& p) { p.world_size = Value::integer(1); }},
      {ErrorCode::kJson, "", [](Parts& p) { p.path = "layer.weight"; }},
      {ErrorCode::kMetaType, "is not a list", [](Parts& p) { p.path = R"({"a":1})"; }},
      {ErrorCode::kMetaType, "has the step", [](Parts& p) { p.path = R"([["a"]])"; }},
      {ErrorCode::kUnsupported, "sharding 'Mine'", [](Parts& p) { p.type = "Mine"; }},
      {ErrorCode::kMetaType, "'global_shape' is not a shape",
       [](Parts& p) { p.shape = list({-1}); }},
      {ErrorCode::kMetaType, "'global_shape' is not a shape",
       [](Parts& p) {
         p.shape = list({kHuge, 4});
       }},
      {ErrorCode::kOverflow, "number of bytes",
       [](Parts& p) {
         p.shape = list({kHuge, 1});
         p.dtype = "torch.float64";
       }},
      {ErrorCode::kDtype, "'float32'", [](Parts& p) { p.dtype = "float32"; }},
      {ErrorCode::kDtype, "'torch.nothing'", [](Parts& p) { p.dtype = "torch.nothing"; }},
      {ErrorCode::kBounds, "0 ranks along", [](Parts& p) { p.mesh_shape = list({0}); }},
      {ErrorCode::kOverflow, "ranks of a mesh",
       [](Parts& p) {
         p.mesh_shape = list({1'000'000, 1'000'000, 1'000'000, 1'000'000});
       }},
      {ErrorCode::kMetaType, "a mesh of 3 ranks names 2",
       [](Parts& p) { p.mesh_shape = list({3}); }},
      {ErrorCode::kMetaType, "names rank 1 twice",
       [](Parts& p) {
         p.mesh_data = list({1, 1});
       }},
      {ErrorCode::kBounds, "rank 1 is not in its mesh",
       [](Parts& p) {
         p.mesh_data = list({0, 2});
       }},
      {ErrorCode::kMetaType, "0 placements for a mesh of 1",
       [](Parts& p) { p.placements = Value::list({}); }},
      {ErrorCode::kUnsupported, "placement 'Partial'",
       [](Parts& p) {
         p.placements = Value::list({dict({{"type", text("Partial")}})});
       }},
      {ErrorCode::kBounds, "dimension 2 of 2",
       [](Parts& p) {
         p.placements = Value::list({dict({{"type", text("Shard")}, {"dim", Value::integer(2)}})});
       }},
      {ErrorCode::kBounds, "dimension -1",
       [](Parts& p) {
         p.placements = Value::list({dict({{"type", text("Shard")}, {"dim", Value::integer(-1)}})});
       }},
      {ErrorCode::kMetaType, "rank 0 twice",
       [](Parts& p) {
         p.ranks = list({0, 0});
       }},
      {ErrorCode::kBounds, "rank 5 of 2", [](Parts& p) { p.ranks = list({5}); }},
      {ErrorCode::kMetaType, "'ranks' is not a list", [](Parts& p) { p.ranks = text("0"); }},
      {ErrorCode::kMetaType, "has no 'global_offsets'",
       [](Parts& p) { p.type = "default_tensor_v1"; }},
      {ErrorCode::kMetaType, "key of a rank", [](Parts& p) { p.layouts[0].first = text("first"); }},
      {ErrorCode::kMetaType, "has no 'file_path'",
       [](Parts& p) { p.layouts[0].second = dict({}); }}};
  for (const Case& wrong : cases) {
    Parts parts;
    wrong.change(parts);
    test::expect_error(wrong.code, wrong.fragment, [&] { read(parts.root()); });
  }
  test::expect_error(ErrorCode::kMetaType, "expected a dict", [] { read(Value::list({})); });
  test::expect_error(ErrorCode::kMetaType, "has no 'world_size'", [] { read(dict({})); });
}

TEST(TorchCheckpointingMetadata, listed_boxes_lie_in_the_tensor) {
  const auto with = [](const Numbers& offset, const Numbers& size, const Numbers& local) {
    Parts parts;
    parts.type = "default_tensor_v1";
    parts.more_data = {{"global_offsets", Value::list({list(offset)})},
                       {"local_sizes", Value::list({list(size)})},
                       {"local_offsets", Value::list({list(local)})}};
    return [parts] { read(parts.root()); };
  };
  constexpr std::int64_t kHuge = INT64_MAX;
  EXPECT_NO_THROW(with({4, 0}, {1, 4}, {0, 0})());
  test::expect_error(ErrorCode::kBounds, "outside [5, 4]", with({5, 0}, {1, 4}, {0, 0}));
  test::expect_error(ErrorCode::kBounds, "in dimension 1", with({0, 0}, {1, 5}, {0, 0}));
  test::expect_error(ErrorCode::kBounds, "outside", with({kHuge, 0}, {5, 4}, {0, 0}));
  test::expect_error(ErrorCode::kBounds, "outside", with({0, 0}, {kHuge, 4}, {0, 0}));
  test::expect_error(ErrorCode::kBounds, "outside", with({-1, 0}, {1, 4}, {0, 0}));
  test::expect_error(ErrorCode::kBounds, "outside", with({0, 0}, {1, 4}, {0, -1}));
  test::expect_error(ErrorCode::kRank, "than 2", with({0}, {1}, {0}));
}

TEST(TorchCheckpointingMetadata, no_name_is_accepted) {
  Parts parts;
  parts.version = Value::global("os", "system");
  test::expect_error(ErrorCode::kGlobal, "'os.system' is not allowed", [&] { read(parts.root()); });
}

// Parts that the pickle has once, and refers to often.
TEST(TorchCheckpointingMetadata, shared_parts_do_not_unfold) {
  const Parts parts;
  const Value groups = Value::list({parts.group()});
  std::vector<Value::Entry> paths;
  for (int i = 0; i < 100; ++i) paths.emplace_back(text("[" + std::to_string(i) + "]"), groups);
  const Value described = dict({{"nested_path_to_metadata", Value::dict(paths)},
                                {"rank_to_layout_info", Value::dict(parts.layouts)}});
  const auto of_items = [&](int count, std::int64_t ranks) {
    std::vector<Value::Entry> items;
    for (int i = 0; i < count; ++i) items.emplace_back(text(std::to_string(i)), described);
    return dict({{"metadata", Value::dict(items)},
                 {"world_size", Value::integer(ranks)},
                 {"version", text("2.0")}});
  };
  const Metadata two = read(of_items(2, 2));
  EXPECT_EQ(two.items[0].tensors[0].shardings, two.items[1].tensors[99].shardings);
  test::expect_error(ErrorCode::kLimitNodes, "unfolds into", [&] { read(of_items(1000, 2)); });
  // A layout of ranks that many items share.
  std::vector<Value::Entry> layouts;
  for (std::int64_t rank = 0; rank < 20'000; ++rank)
    layouts.emplace_back(Value::integer(rank), Value());
  const Value empty =
      dict({{"nested_path_to_metadata", dict({})}, {"rank_to_layout_info", Value::dict(layouts)}});
  std::vector<Value::Entry> items;
  for (int i = 0; i < 1000; ++i) items.emplace_back(text(std::to_string(i)), empty);
  test::expect_error(ErrorCode::kLimitNodes, "unfolds into", [&] {
    read(dict({{"metadata", Value::dict(items)},
               {"world_size", Value::integer(20'000)},
               {"version", text("2.0")}}));
  });
  Parts deep;
  deep.shape = list(Numbers(65, 1));
  test::expect_error(ErrorCode::kRank, "65 dimensions, at most 64", [&] { read(deep.root()); });
}

// The package's own file: whatever is cut off or flipped is an error or other metadata, and is
// still taken for such a file.
TEST(TorchCheckpointingMetadata, damage_gives_errors_and_nothing_worse) {
  const auto bytes =
      test::read_data("golden/frameworks/torch_checkpointing_safetensors_w2/ckpt/metadata.pkl");
  EXPECT_EQ(read_metadata(MemorySource(bytes)).items.size(), 3U);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(read_metadata(MemorySource(std::span(bytes).first(size))), Error) << size;
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const unsigned flip : {1U, 0x80U, 0xFFU}) {
      auto damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(flip);
      EXPECT_TRUE(looks_like_metadata(MemorySource(damaged))) << at;
      try {
        const Metadata metadata = read_metadata(MemorySource(damaged));
        for (const Item& item : metadata.items) {
          for (const TensorLayout& tensor : item.tensors) {
            for (const auto& sharding : tensor.shardings->groups) {
              for (const std::int64_t rank : *sharding->ranks) sharding->boxes_of(rank);
            }
          }
        }
      } catch (const Error&) {
      }
    }
  }
  EXPECT_FALSE(looks_like_metadata(MemorySource(test::to_bytes("\x80\x04}."))));
}

}  // namespace
}  // namespace fsdp::formats::torch_checkpointing
