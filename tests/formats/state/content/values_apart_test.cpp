// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/values_apart.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using testing::Contains;
using testing::IsSubsetOf;
using testing::Not;

// A folder by PyTorch with tensors inside values.
std::unique_ptr<Checkpoint> folder() {
  return open_checkpoint(test::data_path("golden/2.11.0/nested/ckpt"));
}

std::vector<std::string> keys(const Checkpoint& checkpoint, bool tensors) {
  std::vector<std::string> out;
  if (tensors) {
    for (const TensorEntry& entry : checkpoint.index().tensors) out.push_back(entry.key);
  } else {
    for (const ValueEntry& entry : checkpoint.index().values) out.push_back(entry.key);
  }
  return out;
}

const ApartRule kWithTensors = {.wanted = [](const std::string&) { return true; },
                                .only_with_tensors = true};

// If a value holds tensors, the index equals that of a torch.save file of the same value.
TEST(ValuesApart, tensors_inside_of_values_are_tensors) {
  const auto whole = folder();
  const auto apart = with_values_apart(folder(), kWithTensors);
  EXPECT_GT(apart->index().tensors.size(), whole->index().tensors.size());
  EXPECT_THAT(keys(*whole, true), IsSubsetOf(keys(*apart, true)));
  const Value content = with_values(*whole, content_of(*whole));
  std::vector<std::string> wanted;
  for (const Leaf& leaf : leaves_of(content)) {
    if (dense_tensor(leaf.value)) wanted.push_back(leaf.key);
  }
  EXPECT_THAT(keys(*apart, true), testing::UnorderedElementsAreArray(wanted));
  for (const TensorEntry& tensor : apart->index().tensors) {
    if (tensor.numel() == 0) continue;
    EXPECT_NO_THROW(apart->chunk(tensor, 0)) << tensor.key;
  }
}

// Tuples stay tuples, and keys keep their types.
TEST(ValuesApart, containers_keep_their_kinds) {
  const auto whole = folder();
  const auto apart = with_values_apart(folder(), kWithTensors);
  const auto kinds = [](const Checkpoint& checkpoint) {
    std::vector<std::string> out;
    const std::function<void(const Value&)> walk = [&](const Value& value) {
      if (tensor_number(value) || dense_tensor(value)) {
        out.push_back("tensor");
        return;
      }
      out.emplace_back(kind_name(value.kind()));
      if (const auto entries = mapping_entries(value)) {
        for (const auto& [key, item] : *entries) walk(item);
      } else if (value.kind() == ValueKind::kList || value.kind() == ValueKind::kTuple) {
        for (const Value& item : value.items()) walk(item);
      }
    };
    walk(with_values(checkpoint, content_of(checkpoint)));
    return out;
  };
  EXPECT_EQ(kinds(*apart), kinds(*whole));
}

TEST(ValuesApart, what_nobody_wants_apart_is_not_read) {
  auto source = folder();
  const Checkpoint* const same = source.get();
  EXPECT_EQ(
      with_values_apart(std::move(source), {.wanted = [](const std::string&) { return false; }})
          .get(),
      same);
}

// Makes each value on request, so that a value lies in the memory that the previous one
// left.
class OneByOne : public Checkpoint {
 public:
  OneByOne() : source_(folder()) {
    for (const Leaf& leaf : leaves_of(with_values(*source_, content_of(*source_)))) {
      if (dense_tensor(leaf.value)) tensor_ = leaf.value;
    }
    index_.files = source_->index().files;
    for (int i = 0; i < 100; ++i)
      index_.add(ValueEntry{std::to_string(i), {std::to_string(i)}, {}});
  }
  static bool has_tensor(const ValueEntry& value) { return std::stoi(value.key) % 2 == 1; }
  Value value(const ValueEntry& value) const override {
    return Value::list({has_tensor(value) ? tensor_ : Value()});
  }
  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    return source_->chunk(tensor, chunk);
  }
  ChunkData storage(const StorageRef& storage) const override { return source_->storage(storage); }
  void check_unchanged() const override {}

 private:
  std::unique_ptr<Checkpoint> source_;
  Value tensor_;
};

TEST(ValuesApart, a_value_is_not_taken_for_the_one_whose_memory_it_has) {
  const OneByOne source;
  std::vector<std::string> wanted;
  for (const ValueEntry& value : source.index().values) {
    if (OneByOne::has_tensor(value)) wanted.push_back(value.key + ".0");
  }
  EXPECT_EQ(keys(*with_values_apart(std::make_unique<OneByOne>(), kWithTensors), true), wanted);
}

}  // namespace
}  // namespace fsdp::formats
