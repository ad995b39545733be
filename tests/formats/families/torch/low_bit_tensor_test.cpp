// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/low_bit_tensor.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/files/file.h"
#include "formats/front/open.h"
#include "formats/state/content/object_fields.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;

// A state of AdamW8bit in the form of torch.save: of 64 x 64 elements, in blocks of 256.
class LowBitTensorTest : public testing::Test {
 protected:
  LowBitTensorTest()
      : file_(file_at(test::data_path("producers/torchao/adamw8bit.pt"))),
        torch_(read_torch_file(*file_)) {
    state_ = state("exp_avg");
  }

  Value state(const char* name) const {
    const std::vector<PathStep> path = {"optim", "state", "0", name};
    return *at_path(torch_.root, path);
  }

  // The state with the arguments of its class and its attributes edited.
  using Edit = std::function<void(std::vector<Value>& made, std::vector<Value::Entry>& attributes)>;
  Value edited(const Edit& edit) const {
    ObjectData object = *state_.as_object();
    std::vector<Value> args(object.args.items().begin(), object.args.items().end());
    std::vector<Value> made(args[2].items().begin(), args[2].items().end());
    std::vector<Value::Entry> attributes(args[3].entries().begin(), args[3].entries().end());
    edit(made, attributes);
    args[2] = Value::tuple(std::move(made));
    args[3] = Value::dict(std::move(attributes));
    object.args = Value::tuple(std::move(args));
    return Value::object(std::move(object));
  }

  // A tensor of the file with another shape over the same storage.
  static Value viewed(const Value& tensor, const std::vector<std::int64_t>& shape) {
    ObjectData call = *tensor.as_object();
    std::vector<Value> args(call.args.items().begin(), call.args.items().end());
    const auto numbers = [](const std::vector<std::int64_t>& values) {
      std::vector<Value> items;
      for (const std::int64_t value : values) items.push_back(Value::integer(value));
      return Value::tuple(std::move(items));
    };
    args[2] = numbers(shape);
    args[3] = numbers(row_major_strides(shape));
    call.args = Value::tuple(std::move(args));
    return Value::object(std::move(call));
  }

  std::vector<float> elements(const Value& value, std::uint64_t from, std::size_t count) {
    const auto tensor = low_bit_tensor(value);
    const ChunkData data = low_bit_data(torch_, *tensor, {file_, "states.pt", 0, 0}, spill_);
    std::vector<float> out(count);
    data.source->read_at(from * sizeof(float), std::as_writable_bytes(std::span(out)));
    return out;
  }

  std::shared_ptr<const File> file_;
  TorchFile torch_;
  Value state_;
  Spill spill_;
};

TEST_F(LowBitTensorTest, says_what_the_elements_are_made_of) {
  const auto tensor = low_bit_tensor(state_);
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->cls, "torchao.optim.subclass_8bit.OptimState8bit");
  EXPECT_EQ(tensor->dtype, DType::kFloat32);
  EXPECT_THAT(tensor->shape, ElementsAre(64, 64));
  EXPECT_THAT(tensor->scale.shape, ElementsAre(16));
  EXPECT_FALSE(tensor->nibbles);
}

TEST_F(LowBitTensorTest, leaves_other_values_alone) {
  EXPECT_FALSE(low_bit_tensor(Value::integer(3)));
  EXPECT_FALSE(low_bit_tensor(*at_path(torch_.root, std::vector<PathStep>{"model", "0.weight"})));
  EXPECT_FALSE(low_bit_tensor(edited([](auto& made, auto&) {
    made[0] = Value::global("torchao.optim.subclass_8bit", "OptimState6bit", 0);
  })));
}

// Any range of bytes is a part of the whole, for any first and last element and block.
TEST_F(LowBitTensorTest, every_range_is_part_of_the_whole) {
  const auto tensor = low_bit_tensor(state_);
  const ChunkData data = low_bit_data(torch_, *tensor, {file_, "states.pt", 0, 0}, spill_);
  EXPECT_EQ(low_bit_class_of(data), tensor->cls);
  EXPECT_TRUE(data.self_checked);
  std::vector<std::byte> whole(data.storage_bytes);
  data.source->read_at(0, whole);
  for (std::size_t begin = 0; begin < whole.size(); begin += 997) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{6}, std::size_t{5001}}) {
      std::vector<std::byte> part(std::min(length, whole.size() - begin));
      data.source->read_at(begin, part);
      ASSERT_EQ(0, std::memcmp(part.data(), whole.data() + begin, part.size()))
          << begin << " " << length;
    }
  }
  std::vector<std::byte> past(2);
  test::expect_error(ErrorCode::kTruncated, "2 bytes at byte 16383",
                     [&] { data.source->read_at(whole.size() - 1, past); });
}

// PyTorch's own reading of the same bytes: tests/interop compares all of it.
TEST_F(LowBitTensorTest, elements_are_table_entries_times_scales) {
  // One step of AdamW from a gradient of 2 everywhere.
  EXPECT_THAT(elements(state_, 4094, 2), testing::Each(testing::FloatNear(0.2F, 1e-6F)));
  EXPECT_THAT(elements(state("exp_avg_sq"), 255, 2),
              testing::Each(testing::FloatNear(0.004F, 1e-7F)));
}

TEST_F(LowBitTensorTest, parts_that_do_not_fit_each_other_are_refused) {
  struct Case {
    const char* name;
    ErrorCode code;
    const char* message;
    Edit edit;
  };
  const auto tensor_of = [](std::vector<Value::Entry>& attributes,
                            const std::string& name) -> Value& {
    for (auto& [key, value] : attributes) {
      if (*key.as_string() == name) return value;
    }
    throw std::runtime_error("no attribute " + name);
  };
  const std::vector<Case> cases = {
      {"no codes", ErrorCode::kMetaType, "has no tensor 'codes'",
       [](auto&, auto& attributes) { attributes.erase(attributes.begin()); }},
      {"codes that are a number", ErrorCode::kMetaType, "has no tensor 'codes'",
       [&](auto&, auto& attributes) { tensor_of(attributes, "codes") = Value::integer(1); }},
      {"codes of floats", ErrorCode::kDtype, "codes is float32, expected uint8",
       [&](auto&, auto& attributes) {
         tensor_of(attributes, "codes") = tensor_of(attributes, "scale");
       }},
      {"scales of bytes", ErrorCode::kDtype, "scale is uint8, expected float32",
       [&](auto&, auto& attributes) {
         tensor_of(attributes, "scale") = tensor_of(attributes, "codes");
       }},
      {"fewer codes than elements", ErrorCode::kShape, "codes have shape [63, 64]",
       [&](auto&, auto& attributes) {
         Value& codes = tensor_of(attributes, "codes");
         codes = viewed(codes, {63, 64});
       }},
      {"another size", ErrorCode::kShape, "do not fit a tensor of [64, 65]",
       [](auto& made, auto&) {
         made[2] = Value::tuple({Value::integer(64), Value::integer(65)});
       }},
      {"scales that do not divide the elements", ErrorCode::kShape, "elements into equal blocks",
       [&](auto&, auto& attributes) {
         Value& scale = tensor_of(attributes, "scale");
         scale = viewed(scale, {15});
       }},
      {"no scales", ErrorCode::kShape, "elements into equal blocks",
       [&](auto&, auto& attributes) {
         Value& scale = tensor_of(attributes, "scale");
         scale = viewed(scale, {0});
       }},
      {"scales in rows", ErrorCode::kShape, "scale has shape [4, 4]",
       [&](auto&, auto& attributes) {
         Value& scale = tensor_of(attributes, "scale");
         scale = viewed(scale, {4, 4});
       }},
      {"a table that is short", ErrorCode::kShape, "qmap has shape [255], expected [256]",
       [&](auto&, auto& attributes) {
         Value& table = tensor_of(attributes, "qmap");
         table = viewed(table, {255});
       }},
      {"a type that is not floating-point", ErrorCode::kMetaType, "lacks a floating type or a size",
       [](auto& made, auto&) { made[1] = Value::global("torch", "int64", 0); }},
      {"a negative size", ErrorCode::kMetaType, "lacks a floating type or a size",
       [](auto& made, auto&) { made[2] = Value::tuple({Value::integer(-1)}); }},
      {"nothing but the class", ErrorCode::kMetaType, "lacks a floating type or a size",
       [](auto& made, auto&) { made.resize(1); }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.name);
    test::expect_error(wrong.code, wrong.message, [&] { low_bit_tensor(edited(wrong.edit)); });
  }
}

// Each record is compared with its checksum before an element is computed from it.
TEST_F(LowBitTensorTest, a_flipped_bit_of_any_part_is_found) {
  const auto tensor = low_bit_tensor(state_);
  for (const TensorValue* part : {&tensor->codes, &tensor->scale, &*tensor->table}) {
    TorchFile broken = torch_;
    StorageRecord& record = broken.records.at(part->storage->key);
    record.crc = *record.crc ^ 1U;
    const ChunkData data = low_bit_data(broken, *tensor, {file_, "states.pt", 0, 0}, spill_);
    std::vector<std::byte> out(4);
    for (int again = 0; again < 2; ++again) {
      test::expect_error(ErrorCode::kZipCrc, "states.pt: the record at byte",
                         [&] { data.source->read_at(0, out); });
    }
  }
}

// FP8 parameters by Transformer Engine's own classes (tests/data/make_transformer_engine.py).
class EngineTensorTest : public testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path folder() { return test::data_path("producers/transformer_engine"); }
  static std::vector<std::byte> bytes_of(const Checkpoint& checkpoint, const std::string& key) {
    const auto found = std::ranges::find(checkpoint.index().tensors, key, &TensorEntry::key);
    const ChunkData data = checkpoint.chunk(*found, 0);
    std::vector<std::byte> out(found->bytes());
    data.source->read_at(data.storage_offset, out);
    return out;
  }
  // The object of a tensor in the folder, with an argument replaced.
  static Value edited(std::size_t argument, const Value& value,
                      const std::string& key = "model.e4m3") {
    const auto checkpoint = open_checkpoint(folder() / GetParam());
    const auto found = std::ranges::find(checkpoint->index().tensors, key, &TensorEntry::key);
    const Location place = found->chunks.location(0);
    const auto file = file_at(folder() / GetParam() / "__0_0.distcp");
    const TorchFile item = read_torch_file(SourceRange(file, place.offset, place.length));
    ObjectData object = *item.root.as_object();
    std::vector<Value> args(object.args.items().begin(), object.args.items().end());
    if (argument < args.size()) args[argument] = value;
    object.args = Value::tuple(std::move(args));
    return Value::object(std::move(object));
  }
  static void expect_refused(ErrorCode code, std::string_view said, std::size_t argument,
                             const Value& value) {
    test::expect_error(code, said, [&] { low_bit_tensor(edited(argument, value)); });
  }
};

TEST_P(EngineTensorTest, elements_are_those_that_it_dequantizes_to) {
  const auto checkpoint = open_checkpoint(folder() / GetParam());
  const auto truth = open_checkpoint(folder() / "truth.pt");
  for (const std::string key :
       {"model.e4m3", "model.e5m2", "model.blocks", "model.stacked_blocks", "model.bias"})
    EXPECT_EQ(bytes_of(*checkpoint, key), bytes_of(*truth, key)) << key;
  EXPECT_TRUE(checkpoint->verify({}).findings.empty());
}

TEST_P(EngineTensorTest, parts_that_do_not_match_are_refused) {
  const Value whole = edited(9, Value());
  ASSERT_TRUE(low_bit_tensor(whole));
  EXPECT_EQ(low_bit_tensor(whole)->code, DType::kFloat8E4M3FN);
  expect_refused(ErrorCode::kMetaType, "has no tensor 'data'", 0, Value());
  expect_refused(ErrorCode::kMetaType, "lacks a type", 1, Value::integer(7));
  expect_refused(ErrorCode::kMetaType, "has no tensor 'scale_inv'", 2, Value());
  expect_refused(ErrorCode::kDtype, "scale_inv is uint8, expected float32", 2,
                 whole.as_object()->args.items()[0]);
  expect_refused(ErrorCode::kDtype, "data is float32, expected uint8", 0,
                 whole.as_object()->args.items()[2]);
  expect_refused(ErrorCode::kMetaType, "lacks a type", 3, Value::integer(7));
  expect_refused(ErrorCode::kShape, "data have shape [8, 32]", 4,
                 Value::tuple({Value::integer(256)}));
}

TEST_P(EngineTensorTest, parts_of_blocks_are_read_at_any_byte) {
  const auto checkpoint = open_checkpoint(folder() / GetParam());
  const auto truth = open_checkpoint(folder() / "truth.pt");
  const std::string key = "model.blocks";
  const std::vector<std::byte> whole = bytes_of(*truth, key);
  const auto found = std::ranges::find(checkpoint->index().tensors, key, &TensorEntry::key);
  const ChunkData data = checkpoint->chunk(*found, 0);
  // Over the ends of tiles, of rows, and of what is computed at once.
  for (const std::size_t at : {253U, 2U * 132U * 127U, 8191U, 2U * 132U * 130U - 300U}) {
    std::vector<std::byte> some(299);
    data.source->read_at(data.storage_offset + at, some);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + static_cast<long>(at))) << at;
  }
}

TEST_P(EngineTensorTest, parts_of_blocks_that_do_not_match_are_refused) {
  const auto refused = [](ErrorCode code, std::string_view said, std::size_t argument,
                          const Value& value) {
    test::expect_error(code, said,
                       [&] { low_bit_tensor(edited(argument, value, "model.blocks")); });
  };
  const Value whole = edited(10, Value(), "model.blocks");
  ASSERT_TRUE(low_bit_tensor(whole));
  EXPECT_EQ(low_bit_tensor(whole)->tile, 128);
  const auto args = whole.as_object()->args.items();
  refused(ErrorCode::kMetaType, "has no tensor 'data'", 1, Value());
  refused(ErrorCode::kMetaType, "has no tensor 'scale_inv'", 2, Value());
  refused(ErrorCode::kMetaType, "lacks a type", 5, Value());
  refused(ErrorCode::kDtype, "data is float32, expected uint8", 1, args[2]);
  refused(ErrorCode::kShape, "expected [132, 130] and [2, 2]", 0,
          Value::tuple({Value::integer(132), Value::integer(130)}));
  const Value other = edited(9, Value(), "model.stacked_blocks");
  refused(ErrorCode::kShape, "scale_inv [1, 2], expected [130, 132] and [2, 2]", 2,
          other.as_object()->args.items()[2]);
  refused(ErrorCode::kUnsupported, "only that library takes apart", 8, Value::boolean(false));
}

TEST_P(EngineTensorTest, its_other_forms_are_refused_by_name) {
  ObjectData transposed = *edited(0, Value()).as_object();
  std::vector<Value> args(transposed.args.items().begin(), transposed.args.items().end());
  args[5] = args[2];
  transposed.args = Value::tuple(std::move(args));
  test::expect_error(ErrorCode::kUnsupported, "holds only its transpose",
                     [&] { low_bit_tensor(Value::object(std::move(transposed))); });
  ObjectData other = *edited(9, Value()).as_object();
  other.callable = Value::global("transformer_engine.pytorch.tensor.mxfp8_tensor",
                                 "_make_mxfp8_tensor_in_reduce_ex", 0);
  test::expect_error(ErrorCode::kUnsupported, "only that library takes apart",
                     [&] { low_bit_tensor(Value::object(std::move(other))); });
}

INSTANTIATE_TEST_SUITE_P(ByPython, EngineTensorTest, testing::Values("by_name", "by_value"));

}  // namespace
}  // namespace fsdp::formats
