// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/ahead_memory.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sim_store.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr unsigned kAtOnce = 48;

class AheadMemoryTest : public testing::Test {
 protected:
  // A block of the file, as a request that was answered leaves it.
  std::shared_ptr<AheadFile::Block> read(std::uint64_t begin, std::uint64_t bytes) {
    auto block = std::make_shared<AheadFile::Block>();
    block->begin = begin;
    block->end = begin + bytes;
    file_->blocks[begin] = block;
    memory_.begin(*block);
    if (!block->bytes) block->bytes = std::make_shared<std::byte[]>(block->capacity);
    memory_.arrived(file_, block);
    block->state = AheadFile::Block::State::kReady;
    return block;
  }

  std::atomic<std::uint64_t> budget_{64 * kMiB};
  AheadMemory memory_{budget_, kAtOnce};
  std::shared_ptr<AheadFile> file_ = std::make_shared<AheadFile>(
      test::sim_store({.root = {}, .fault = {}}), "sim://f", StoredFile{});
};

TEST_F(AheadMemoryTest, what_is_left_of_a_range_joins_its_last_request) {
  EXPECT_EQ(memory_.request_bytes(), kMiB);
  EXPECT_EQ(memory_.request_end(0, 3 * kMiB), kMiB);
  EXPECT_EQ(memory_.request_end(0, kMiB + kMiB / 2), kMiB + kMiB / 2);
  EXPECT_EQ(memory_.request_end(0, kMiB + kMiB / 2 + 1), kMiB);
}

TEST_F(AheadMemoryTest, buffers_serve_blocks_of_about_their_size) {
  const auto first = read(0, kMiB);
  const std::byte* const bytes = first->bytes.get();
  memory_.forget(*file_, first);
  EXPECT_EQ(read(0, kMiB + kMiB / 3)->bytes.get(), bytes);
}

// Buffers that wait for the next block count: small blocks, which take none of them, drive them
// out.
TEST_F(AheadMemoryTest, buffers_that_are_kept_are_within_the_memory) {
  std::vector<std::shared_ptr<AheadFile::Block>> blocks;
  for (std::uint64_t i = 0; i < 60; ++i) blocks.push_back(read(i * kMiB, kMiB));
  for (const auto& block : blocks) memory_.forget(*file_, block);
  blocks.clear();
  EXPECT_GE(memory_.bytes(), 32 * kMiB) << "they are kept";
  EXPECT_LE(memory_.bytes(), budget_);
  for (std::uint64_t i = 0; i < 240; ++i) {
    read(i * kMiB, kMiB / 4);
    ASSERT_LE(memory_.bytes(), budget_);
  }
}

// Whoever gave a hint may never come: what is read meanwhile counts, from a block or not.
TEST_F(AheadMemoryTest, what_nobody_came_for_makes_room_once_enough_was_read) {
  for (std::uint64_t i = 0; i < 64; ++i) read(i * kMiB, kMiB);
  EXPECT_FALSE(memory_.make_room(kMiB));
  memory_.passed(64 * kMiB + 1);
  EXPECT_TRUE(memory_.make_room(kMiB));
}

}  // namespace
}  // namespace fsdp::formats
