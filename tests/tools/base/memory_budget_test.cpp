// SPDX-License-Identifier: Apache-2.0
#include "tools/base/memory_budget.h"

#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace fsdp::cli {
namespace {

constexpr std::uint64_t kMiB = 1U << 20U;

TEST(MemoryBudget, follows_from_the_files) {
  EXPECT_EQ(budget_for({0, 0}, {}).memory_bytes, 24 * kMiB);
  EXPECT_EQ(budget_for({kMiB, 0}, {}).memory_bytes, 48 * kMiB);
  EXPECT_EQ(budget_for({100 * kMiB, 0}, {}).memory_bytes, 256 * kMiB);
  EXPECT_EQ(budget_for({UINT64_MAX, 10 * kMiB}, {}).memory_bytes, 256 * kMiB);
  // Metadata of any size are read.
  EXPECT_EQ(budget_for({5000 * kMiB, 300 * kMiB}, {}).memory_bytes, 1200 * kMiB);
  EXPECT_GT(budget_for({UINT64_MAX, UINT64_MAX}, {}).memory_bytes, UINT64_MAX / 2);
}

TEST(MemoryBudget, max_memory_is_exact) {
  EXPECT_EQ(budget_for({kMiB, 0}, 100 * kMiB).memory_bytes, 100 * kMiB);
  EXPECT_EQ(budget_for({5000 * kMiB, 300 * kMiB}, 16 * kMiB).memory_bytes, 16 * kMiB);
}

void write(const std::filesystem::path& path, std::size_t bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << std::string(bytes, 'x');
}

TEST(MemoryBudget, files_of_folders_count_and_words_that_are_no_paths_do_not) {
  const test::TempDir folder;
  write(folder.path() / "c/.metadata", 100);
  write(folder.path() / "c/__0_0.distcp", 1000);
  write(folder.path() / "c/inner/model.safetensors.index.json", 30);
  write(folder.path() / "single.pt", 7);
  const auto size = [&](const std::vector<std::string>& names) {
    std::vector<std::string> words = {"verify", "--json"};
    for (const std::string& name : names) words.push_back(folder.path() / name);
    return size_of(words);
  };
  EXPECT_EQ(size({"c"}).bytes, 1130U);
  EXPECT_EQ(size({"c"}).metadata_bytes, 130U);
  EXPECT_EQ(size({"c", "single.pt"}).bytes, 1137U);
  EXPECT_EQ(size({"c", "c"}).bytes, 1130U);
  // A file that represents its folder.
  EXPECT_EQ(size({"c/.metadata"}).bytes, 1130U);
  EXPECT_EQ(size({"c/__0_0.distcp"}).bytes, 1130U);
  EXPECT_EQ(size({"nothing"}).bytes, 0U);
}

TEST(MemoryBudget, words_name_the_option) {
  const formats::Budget budget = budget_for({4096, 0}, {});
  EXPECT_EQ(budget_words({4096, 0}, budget, {}),
            "24.1 MiB, the limit for 4.0 KiB of files; --max-memory SIZE allows more");
  EXPECT_EQ(budget_words({4096, 0}, budget_for({4096, 0}, 32 * kMiB), 32 * kMiB),
            "32.0 MiB; --max-memory SIZE allows more");
}

// All heap allocations of C++ code are counted.
TEST(MemoryBudget, operator_new_is_counted) {
  if (!counts_memory()) GTEST_SKIP() << "sanitizers have an operator new of their own";
  const formats::BudgetScope scope({8 * kMiB, 0, 0});
  {
    const std::vector<char> some(4 * kMiB);
    EXPECT_NEAR(static_cast<double>(formats::memory_left()), 4.0 * kMiB, 0.2 * kMiB);
    EXPECT_THROW(std::vector<char>(6 * kMiB), formats::OverBudget);
  }
  std::vector<std::string> many;
  EXPECT_THROW(for (;;) many.emplace_back(100, 'x'), formats::OverBudget);
  EXPECT_LT(many.size(), 8 * kMiB / 100);
  EXPECT_GT(many.size(), 8 * kMiB / 400);
}

struct alignas(64) Aligned {
  char bytes[64];
};

TEST(MemoryBudget, memory_given_back_is_free_again) {
  if (!counts_memory()) GTEST_SKIP() << "sanitizers have an operator new of their own";
  const formats::BudgetScope scope({8 * kMiB, 0, 0});
  for (int i = 0; i < 100; ++i) {
    const std::vector<char> one(4 * kMiB);
    const std::vector<Aligned> two(30'000);
    const std::unique_ptr<char> small(new char);
  }
  EXPECT_NEAR(static_cast<double>(formats::memory_left()), 8.0 * kMiB, 0.2 * kMiB);
}

}  // namespace
}  // namespace fsdp::cli
