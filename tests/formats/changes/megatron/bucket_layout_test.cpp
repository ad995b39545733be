// SPDX-License-Identifier: Apache-2.0
// Buffers as DistributedOptimizer lays them out; tests/interop/check_megatron.py compares with its
// own.
#include "formats/changes/megatron/bucket_layout.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/cast.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::megatron {
namespace {

using testing::ElementsAre;

// Floats in memory, in chunks of so many rows.
class Floats : public arrays::Operand {
 public:
  Floats(DType dtype, std::vector<std::int64_t> shape, const std::vector<float>& elements,
         std::int64_t rows)
      : dtype_(dtype), shape_(std::move(shape)), rows_(rows) {
    bytes_.resize(elements.size() * item_bytes(dtype));
    cast(DType::kFloat32, std::as_bytes(std::span(elements)), dtype, bytes_);
  }
  DType dtype() const override { return dtype_; }
  std::size_t chunk_count() const override {
    return static_cast<std::size_t>((shape_[0] + rows_ - 1) / rows_);
  }
  Box chunk_box(std::size_t chunk) const override {
    Box box = whole_box(shape_);
    box.offset[0] = static_cast<std::int64_t>(chunk) * rows_;
    box.size[0] = std::min(rows_, shape_[0] - box.offset[0]);
    return box;
  }
  ChunkData open(std::size_t chunk) const override {
    const Box box = chunk_box(chunk);
    const std::size_t row = bytes_.size() / static_cast<std::size_t>(shape_[0]);
    ChunkData data;
    data.storage_bytes = static_cast<std::size_t>(box.size[0]) * row;
    data.source = std::make_shared<MemorySource>(std::span<const std::byte>(bytes_).subspan(
        static_cast<std::size_t>(box.offset[0]) * row, data.storage_bytes));
    data.file = "memory";
    data.dtype = dtype_;
    return data;
  }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::int64_t rows_;
  std::vector<std::byte> bytes_;
};

class BucketLayouts : public testing::Test {
 protected:
  // Adds a parameter of the model, of bfloat16: value, value + 1, ..., or the value everywhere.
  // Numbers up to 256 are bfloat16s.
  void add(const std::string& name, std::vector<std::int64_t> shape, float value,
           bool constant = false, std::int64_t rows = 1 << 20) {
    std::vector<float> elements(volume({shape, shape}));
    for (std::size_t i = 0; i < elements.size(); ++i)
      elements[i] = constant ? value : value + static_cast<float>(i);
    model_.push_back(
        {name, arrays::whole_array(
                   std::make_shared<Floats>(DType::kBFloat16, shape, elements, rows), shape)});
    values_.push_back(std::move(elements));
  }
  // Adds elements [begin, end) of a parameter to the last bucket, a little off in float32, at the
  // next multiple of 64; the padding before it is junk.
  void put(std::size_t parameter, std::size_t begin = 0, std::size_t end = 1 << 20) {
    std::vector<float>& bucket = buckets_.back();
    bucket.resize((bucket.size() + 63) / 64 * 64, -7.5F);
    const auto& values = values_[parameter];
    for (std::size_t i = begin; i < std::min(end, values.size()); ++i)
      bucket.push_back(values[i] * (1 + 1e-5F));
  }
  void new_bucket() { buckets_.emplace_back(); }

  std::vector<Bucket> buffer() const {
    std::vector<Bucket> out;
    for (const auto& elements : buckets_) {
      const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(elements.size())};
      out.push_back({"bucket_idx_0",
                     {{"param", arrays::whole_array(std::make_shared<Floats>(DType::kFloat32, shape,
                                                                             elements, 1 << 20),
                                                    shape)}}});
    }
    return out;
  }
  // Returns "name[count/number]@bucket:begin" of every place.
  std::vector<std::string> places(const std::vector<std::string>& names = {}) const {
    const std::string path = "step-7";
    BucketLayout layout(model_, names, path);
    std::vector<std::string> out;
    for (const PartPlace& place : layout.places(buffer())) {
      const RankPart& part = layout.parts()[place.part];
      out.push_back(model_[part.parameter].name);
      if (part.count > 1)
        out.back() += "[" + std::to_string(part.number) + "/" + std::to_string(part.count) + "]";
      out.back() += "@" + std::to_string(place.bucket) + ":" + std::to_string(place.begin);
    }
    return out;
  }
  void expect_refused(ErrorCode code, std::string_view fragment,
                      const std::vector<std::string>& names = {}) const {
    test::expect_error(code, fragment, [&] { places(names); });
  }

  std::vector<NamedArray> model_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> buckets_ = std::vector<std::vector<float>>(1);
};

std::string layer(int number, const std::string& rest) {
  return "decoder.layers." + std::to_string(number) + "." + rest;
}

TEST_F(BucketLayouts, parameters_are_found_at_multiples_of_64) {
  add("a", {3, 5}, 1);
  add("b", {64}, 100);
  add("c", {2}, 7);
  put(2);
  put(1);
  put(0);
  EXPECT_THAT(places(), ElementsAre("c@0:0", "b@0:64", "a@0:128"));
}

TEST_F(BucketLayouts, buckets_follow_each_other) {
  add("a", {8}, 1);
  add("b", {8}, 100);
  put(1);
  new_bucket();
  put(0);
  EXPECT_THAT(places(), ElementsAre("b@0:0", "a@1:0"));
}

TEST_F(BucketLayouts, a_rank_has_a_chunk_or_one_of_each_half) {
  add("decoder.layers.0.mlp.linear_fc1.weight", {8, 4}, 1, false, 2);  // 2 ranks: rows 0:2 and 4:6
  add("decoder.layers.0.mlp.linear_fc2.weight", {4, 4}, 100, false, 2);
  put(1, 8, 16);
  put(0, 8, 16);
  for (std::size_t i = 24; i < 32; ++i) buckets_.back().push_back(values_[0][i]);
  EXPECT_THAT(places(), ElementsAre("decoder.layers.0.mlp.linear_fc2.weight[1/2]@0:0",
                                    "decoder.layers.0.mlp.linear_fc1.weight[1/2]@0:64"));
}

TEST_F(BucketLayouts, a_whole_parameter_is_not_its_first_chunk) {
  add("a", {8, 4}, 1, false, 2);
  put(0);
  EXPECT_THAT(places(), ElementsAre("a@0:0"));
}

TEST_F(BucketLayouts, other_elements_are_refused) {
  add("a", {8}, 1);
  add("b", {8}, 100);
  put(1);
  put(0);
  buckets_.back()[64 + 3] *= 1.02F;  // rounds to another bfloat16
  expect_refused(ErrorCode::kMismatch, "at element 64 no parameter of the model begins");
}

TEST_F(BucketLayouts, a_parameter_stands_in_a_buffer_once) {
  add("a", {8}, 1);
  put(0);
  put(0);
  expect_refused(ErrorCode::kMismatch, "at element 64 no parameter");
}

TEST_F(BucketLayouts, a_parameter_that_does_not_end_in_its_bucket_is_refused) {
  add("a", {80}, 1);
  put(0);
  buckets_.back().resize(79);
  expect_refused(ErrorCode::kMismatch, "at element 0 no parameter");
}

TEST_F(BucketLayouts, alike_parameters_are_told_apart_by_their_neighbours) {
  for (int l = 0; l < 3; ++l) {
    add(layer(l, "input_norm.weight"), {8}, 1, l != 1);  // layer 1 differs
    add(layer(l, "proj.weight"), {8}, 100.0F + static_cast<float>(l) * 16);
    add(layer(l, "mlp_norm.weight"), {8}, 1, true);
    add(layer(l, "fc.weight"), {8}, 180.0F + static_cast<float>(l) * 16);
  }
  for (std::size_t i = model_.size(); i-- > 0;) put(i);
  std::vector<std::string> expected;
  for (std::size_t i = model_.size(); i-- > 0;)
    expected.push_back(model_[i].name + "@0:" + std::to_string((model_.size() - 1 - i) * 64));
  EXPECT_EQ(places(), expected);
}

TEST_F(BucketLayouts, alike_parameters_without_such_neighbours_need_names) {
  add(layer(0, "input_norm.weight"), {8}, 1, true);
  add(layer(0, "mlp_norm.weight"), {8}, 1, true);
  add(layer(0, "fc.weight"), {8}, 200);
  for (const std::size_t i : {2, 1, 0}) put(i);
  expect_refused(ErrorCode::kRekeyAmbiguous,
                 "'decoder.layers.0.input_norm.weight' or 'decoder.layers.0.mlp_norm.weight'");
  EXPECT_THAT(
      places({model_[0].name, model_[1].name, model_[2].name}),
      ElementsAre(model_[2].name + "@0:0", model_[1].name + "@0:64", model_[0].name + "@0:128"));
  EXPECT_THAT(
      places({model_[1].name, model_[0].name, model_[2].name}),
      ElementsAre(model_[2].name + "@0:0", model_[0].name + "@0:64", model_[1].name + "@0:128"));
}

TEST_F(BucketLayouts, names_have_the_order_of_the_buffer_and_are_complete) {
  add("a", {8}, 1);
  add("b", {8}, 100);
  put(1);
  put(0);
  expect_refused(ErrorCode::kRekeyAmbiguous, "'a' lies behind", {"b", "a"});
  expect_refused(ErrorCode::kKey, "'b': is not among the names", {"a"});
}

TEST_F(BucketLayouts, constants_of_other_sizes_are_not_guessed) {
  add("a", {64}, 0, true);
  add("b", {128}, 0, true);
  put(0);
  put(1);
  expect_refused(ErrorCode::kRekeyAmbiguous, "at element 0 may begin 'a' or 'b'");
}

}  // namespace
}  // namespace fsdp::formats::megatron
