// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/division.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/state/model/extents.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

// The bytes of each rank's share.  Expects that the shares tile every piece in the order of ranks.
std::vector<std::uint64_t> check_shares(std::span<const DividedPiece> pieces,
                                        const Division& division, std::size_t ranks) {
  std::vector<std::uint64_t> bytes(ranks, 0);
  std::vector<std::uint64_t> next(pieces.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    division.for_each(rank, [&](std::size_t piece, ElementRange range) {
      EXPECT_EQ(range.first, next[piece]);
      EXPECT_NE(range.count, 0U);
      if (range.first != 0) {
        EXPECT_EQ((range.first + pieces[piece].shift) % pieces[piece].unit, 0U);
      }
      next[piece] = range.first + range.count;
      bytes[rank] += range.count * pieces[piece].element_bytes;
    });
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(next[i], pieces[i].numel);
  return bytes;
}

TEST(Division, TilesPiecesOfAnySizes) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<DividedPiece> pieces(random() % 40);
    for (DividedPiece& piece : pieces) {
      piece.numel = random() % 3 == 0 ? random() % 4 : random() % 100'000;
      piece.element_bytes = 1 + random() % 16;
      piece.unit = 1 + random() % 5000;
      piece.shift = random() % piece.unit;
    }
    const std::size_t ranks = 1 + random() % 20;
    check_shares(pieces, Division(pieces, ranks), ranks);
  }
}

TEST(Division, OfEqualPiecesIsEqual) {
  const std::vector<DividedPiece> pieces(8, {.numel = 1000, .element_bytes = 4});
  EXPECT_THAT(check_shares(pieces, Division(pieces, 4), 4), testing::Each(8000U));
  // One piece is divided inside.
  EXPECT_THAT(check_shares(std::span(pieces).first(1), Division(std::span(pieces).first(1), 4), 4),
              testing::Each(1000U));
}

// A model of 405 billion parameters in float32 with both moments of AdamW, 5 TB, in the pieces of a
// folder of 1,024 ranks, batch by batch as they are copied.
TEST(Division, OfFiveTerabytesIsBalancedToOnePercent) {
  constexpr std::size_t kRanks = 1024;
  constexpr std::uint64_t kWidth = 16384;
  constexpr std::uint64_t kInner = 53248;
  constexpr std::size_t kBatch = 100'000;
  std::vector<TargetPiece> batch;
  std::vector<std::uint64_t> shares(kRanks, 0);
  std::uint64_t total = 0;
  const auto divide = [&] {
    const Division division = divide_copy(batch, rest_of(batch, {}), kRanks);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      division.for_each(rank, [&](std::size_t piece, ElementRange range) {
        shares[rank] += range.count * 4;
        if (range.first == 0) return;
        ASSERT_EQ((batch[piece].offset + range.first * 4) % 4096, 0U);
      });
    }
    batch.clear();
  };
  const auto add = [&](std::uint64_t rows, std::uint64_t columns) {
    TargetPiece& piece = batch.emplace_back();
    piece.dtype = DType::kFloat32;
    piece.box = whole_box(std::vector<std::int64_t>{static_cast<std::int64_t>(rows),
                                                    static_cast<std::int64_t>(columns)});
    piece.offset = total + 64 * batch.size();
    total += rows * columns * 4;
    if (batch.size() == kBatch) divide();
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int copy = 0; copy < 3; ++copy) {
    for (int end = 0; end < 2; ++end) add(128256, kWidth);
    for (int layer = 0; layer < 126; ++layer) {
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        for (int part = 0; part < 2; ++part) add(kWidth / kRanks, kWidth);
        add(2048 / kRanks, kWidth);
        for (int part = 0; part < 3; ++part) add(kInner / kRanks, kWidth);
      }
      add(2, kWidth);
    }
  }
  divide();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(total, 4'800'000'000'000U);
  EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), std::uint64_t{0}), total);
  const double mean = static_cast<double>(total) / kRanks;
  EXPECT_LT(static_cast<double>(*std::max_element(shares.begin(), shares.end())), 1.01 * mean);
  EXPECT_GT(static_cast<double>(*std::min_element(shares.begin(), shares.end())), 0.99 * mean);
  EXPECT_LT(took.count(), 10);
}

TEST(Division, OfFilesWithStripesMeetsThem) {
  TargetPiece piece;
  piece.dtype = DType::kFloat32;
  piece.box = whole_box(std::vector<std::int64_t>{std::int64_t{1} << 31});
  piece.offset = 192;
  const std::vector<TargetPiece> pieces(1, piece);
  for (const auto& [stripe, unit] : {std::pair(4096, 1U << 20U), std::pair(4 << 20, 4U << 20U)}) {
    const Division division =
        divide_copy(pieces, rest_of(pieces, {}), 7, static_cast<std::uint64_t>(stripe));
    for (std::size_t rank = 1; rank < 7; ++rank)
      EXPECT_EQ((192 + division.range(rank, 0).first * 4) % unit, 0U) << stripe;
  }
}

TEST(Division, OfVisitsKeepsTheBlocksOfOneProcess) {
  TargetPiece piece;
  piece.dtype = DType::kBFloat16;
  piece.cast_to = DType::kFloat32;
  piece.box = whole_box(std::vector<std::int64_t>{10'000'000});
  const std::vector<TargetPiece> pieces(3, piece);
  const std::span<const TargetPiece> sides[] = {pieces};
  const Division division = divide_visit(sides, 1U << 20U, 7);
  for (std::size_t rank = 0; rank < 7; ++rank) {
    division.for_each(rank, [&](std::size_t, ElementRange range) {
      EXPECT_EQ(range.first % ((1U << 20U) / 4), 0U);
    });
  }
}

TEST(Division, NamesAMemberWithOtherPieces) {
  const auto errors = test::run_team(3, [](Team& team) {
    TargetPiece piece;
    piece.key = "w";
    piece.box = whole_box(std::vector<std::int64_t>{4});
    piece.offset = team.rank() == 2 ? 128 : 64;
    agree_on_pieces(team, std::span(&piece, 1));
  });
  EXPECT_THAT(errors, testing::Each("rank 2 has another plan than rank 0"));
}

}  // namespace
}  // namespace fsdp::formats
