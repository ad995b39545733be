// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

// A tensor 0, 1, 2, ... in float32, cut into chunks that lie in memory.
class Tensor {
 public:
  explicit Tensor(std::vector<std::int64_t> shape) : whole_(whole_box(shape)) {
    truth_.resize(volume(whole_.view()));
    std::iota(truth_.begin(), truth_.end(), 0.0F);
  }
  // The chunk of that box, row-major.
  void add(const Box& box) {
    const std::vector<std::int64_t> strides = row_major_strides(whole_.size);
    auto numbers = std::make_shared<std::vector<float>>(volume(box.view()));
    for (std::size_t i = 0; i < numbers->size(); ++i) {
      std::size_t rest = i;
      std::size_t at = 0;
      for (std::size_t d = box.size.size(); d-- > 0;) {
        const auto size = static_cast<std::size_t>(box.size[d]);
        at += (static_cast<std::size_t>(box.offset[d]) + rest % size) *
              static_cast<std::size_t>(strides[d]);
        rest /= size;
      }
      (*numbers)[i] = truth_[at];
    }
    SourceChunk chunk{box, {}};
    chunk.data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(*numbers)));
    chunk.data.file = "chunk" + std::to_string(chunks_.size());
    chunk.data.storage_bytes = numbers->size() * 4;
    chunk.data.crc = crc32(0, std::as_bytes(std::span(*numbers)));
    chunks_.push_back(std::move(chunk));
    storages_.push_back(std::move(numbers));
  }
  void add_columns() {
    for (const auto& [from, count] : {std::pair{0, 3}, std::pair{3, 1}, std::pair{4, 13}})
      add({{0, from}, {whole_.size[0], count}});
  }
  TargetPiece piece() const {
    TargetPiece piece;
    piece.key = "w";
    piece.box = whole_;
    piece.sources = [chunks = chunks_] { return chunks; };
    return piece;
  }
  const std::vector<float>& truth() const { return truth_; }
  float& stored(std::size_t chunk, std::size_t i) { return (*storages_[chunk])[i]; }

 private:
  Box whole_;
  std::vector<float> truth_;
  std::vector<SourceChunk> chunks_;
  std::vector<std::shared_ptr<std::vector<float>>> storages_;
};

// The visited data: the bytes put together, and where blocks began.
struct Visited {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> offsets;
  CopyResult result;
};

Visited visit(const TargetPiece& piece, VisitOptions options) {
  Visited visited;
  std::mutex mutex;
  visited.bytes.resize(volume(piece.box.view()) * item_bytes(piece.written_dtype()));
  visited.result = visit_pieces(std::span(&piece, 1), options, [&](const TensorBlock& block) {
    const std::lock_guard lock(mutex);
    std::copy(block.bytes.begin(), block.bytes.end(),
              visited.bytes.begin() + static_cast<std::ptrdiff_t>(block.offset));
    visited.offsets.push_back(block.offset);
    EXPECT_LE(block.bytes.size(), options.block_bytes);
  });
  return visited;
}

std::vector<float> floats(const Visited& visited) {
  std::vector<float> out(visited.bytes.size() / 4);
  std::memcpy(out.data(), visited.bytes.data(), visited.bytes.size());
  return out;
}

TEST(VisitPieces, blocks_come_in_order_and_begin_at_the_same_places_however_it_is_stored) {
  Tensor rows({1000, 17});
  rows.add({{0, 0}, {3, 17}});
  rows.add({{3, 0}, {997, 17}});
  Tensor columns({1000, 17});
  columns.add_columns();
  VisitOptions options;
  options.block_bytes = 4096;
  const Visited straight = visit(rows.piece(), options);
  const Visited joined = visit(columns.piece(), options);
  EXPECT_EQ(floats(straight), rows.truth());
  EXPECT_EQ(floats(joined), rows.truth());
  EXPECT_EQ(straight.offsets.size(), 17U);
  EXPECT_TRUE(std::is_sorted(straight.offsets.begin(), straight.offsets.end()));
  EXPECT_EQ(straight.offsets, joined.offsets);
  EXPECT_EQ(joined.result.bytes, 68'000U);
}

TEST(VisitPieces, threads_and_memory_change_no_block) {
  Tensor tensor({1000, 17});
  tensor.add_columns();
  VisitOptions options;
  options.block_bytes = 1024;
  const auto alone = visit(tensor.piece(), options);
  for (const std::uint64_t memory :
       {std::uint64_t{0}, std::uint64_t{5000}, std::uint64_t{1} << 20U}) {
    options.threads = 3;
    options.max_buffer_bytes = memory;
    auto several = visit(tensor.piece(), options);
    std::sort(several.offsets.begin(), several.offsets.end());
    EXPECT_EQ(several.offsets, alone.offsets);
    EXPECT_EQ(floats(several), tensor.truth());
  }
}

TEST(VisitPieces, any_tiling_and_part_of_a_tensor_is_put_together) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 60; ++round) {
    const std::vector<std::int64_t> shape = {1 + below(9), 1 + below(9), 1 + below(9)};
    Tensor tensor(shape);
    std::vector<Box> boxes = {whole_box(shape)};
    for (int cut = 0; cut < 8; ++cut) {
      Box& box = boxes[random() % boxes.size()];
      const std::size_t d = random() % 3;
      if (box.size[d] < 2) continue;
      Box second = box;
      box.size[d] = 1 + below(box.size[d] - 1);
      second.offset[d] += box.size[d];
      second.size[d] -= box.size[d];
      boxes.push_back(second);
    }
    for (const Box& box : boxes) tensor.add(box);
    TargetPiece piece = tensor.piece();
    std::vector<float> wanted;
    for (std::size_t d = 0; d < 3; ++d) {
      piece.box.offset[d] = below(shape[d]);
      piece.box.size[d] = 1 + below(shape[d] - piece.box.offset[d]);
    }
    const auto& o = piece.box.offset;
    const auto& s = piece.box.size;
    for (std::int64_t i = o[0]; i < o[0] + s[0]; ++i) {
      for (std::int64_t j = o[1]; j < o[1] + s[1]; ++j) {
        for (std::int64_t k = o[2]; k < o[2] + s[2]; ++k)
          wanted.push_back(static_cast<float>((i * shape[1] + j) * shape[2] + k));
      }
    }
    VisitOptions options;
    options.block_bytes = 16 + 4 * (random() % 50);
    options.threads = 1 + static_cast<unsigned>(random() % 2);
    ASSERT_EQ(floats(visit(piece, options)), wanted);
  }
}

TEST(VisitPieces, elements_are_cast_on_the_way) {
  Tensor tensor({40, 17});
  tensor.add_columns();
  TargetPiece piece = tensor.piece();
  piece.cast_to = DType::kBFloat16;
  VisitOptions options;
  options.block_bytes = 64;
  const Visited visited = visit(piece, options);
  ASSERT_EQ(visited.bytes.size(), 40U * 17 * 2);
  std::uint16_t last = 0;
  std::memcpy(&last, visited.bytes.data() + visited.bytes.size() - 2, 2);
  EXPECT_EQ(last, 0x442A);  // 679 becomes 680
  piece.cast_to = DType::kFloat64;
  const Visited wide = visit(piece, options);
  double number = 0;
  std::memcpy(&number, wide.bytes.data() + wide.bytes.size() - 8, 8);
  EXPECT_EQ(number, 679.0);
}

TEST(VisitPieces, damage_is_found_also_where_it_was_not_asked_for) {
  Tensor tensor({10, 4});
  tensor.add({{0, 0}, {5, 4}});
  tensor.add({{5, 0}, {5, 4}});
  TargetPiece piece = tensor.piece();
  piece.box = {{7, 0}, {2, 4}};
  tensor.stored(0, 1) = 99;  // a chunk that nothing is read from
  EXPECT_NO_THROW(visit(piece, {}));
  tensor.stored(1, 1) = 99;  // a row that is not wanted
  test::expect_error(ErrorCode::kZipCrc, "chunk1: 'w': data at byte 0", [&] { visit(piece, {}); });
  VisitOptions options;
  options.verify = false;
  EXPECT_EQ(floats(visit(piece, options)).front(), 28.0F);
}

TEST(VisitPieces, each_piece_is_reported_once_when_it_is_complete) {
  Tensor a({100, 17});
  a.add_columns();
  Tensor empty({0, 4});
  const std::vector<TargetPiece> pieces = {a.piece(), empty.piece(), a.piece()};
  for (const unsigned threads : {1U, 3U}) {
    std::vector<std::uint64_t> bytes(3);
    std::vector<std::size_t> done;
    std::mutex mutex;
    VisitOptions options;
    options.threads = threads;
    options.block_bytes = 100;
    options.on_piece = [&](std::size_t piece) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(bytes[piece], piece == 1 ? 0U : 6800U);
      done.push_back(piece);
    };
    visit_pieces(pieces, options, [&](const TensorBlock& block) {
      const std::lock_guard lock(mutex);
      bytes[block.piece] += block.bytes.size();
    });
    std::sort(done.begin(), done.end());
    EXPECT_EQ(done, (std::vector<std::size_t>{0, 1, 2}));
  }
}

TEST(VisitPairs, blocks_of_both_cover_the_same_elements_whatever_the_types_and_chunks) {
  Tensor rows({300, 17});
  rows.add({{0, 0}, {120, 17}});
  rows.add({{120, 0}, {180, 17}});
  Tensor columns({300, 17});
  columns.add_columns();
  const TargetPiece left = rows.piece();
  TargetPiece right = columns.piece();
  right.cast_to = DType::kFloat64;
  VisitOptions options;
  options.threads = 2;
  options.block_bytes = 800;
  std::mutex mutex;
  std::uint64_t seen = 0;
  const auto result = visit_pairs(std::span(&left, 1), std::span(&right, 1), options,
                                  [&](const TensorBlockPair& pair) {
                                    const std::lock_guard lock(mutex);
                                    const std::size_t count = pair.left.size() / 4;
                                    ASSERT_EQ(pair.right.size(), count * 8);
                                    ASSERT_LE(pair.right.size(), 800U);
                                    for (std::size_t i = 0; i < count; ++i) {
                                      float a = 0;
                                      double b = 0;
                                      std::memcpy(&a, pair.left.data() + i * 4, 4);
                                      std::memcpy(&b, pair.right.data() + i * 8, 8);
                                      ASSERT_EQ(a, static_cast<float>(pair.first + i));
                                      ASSERT_EQ(b, static_cast<double>(pair.first + i));
                                    }
                                    seen += count;
                                  });
  EXPECT_EQ(seen, 300U * 17);
  EXPECT_EQ(result.bytes, 300U * 17 * 12);
}

TEST(VisitPairs, storages_of_the_two_sides_with_the_same_name_are_kept_apart) {
  Tensor left({8});
  left.add({{0}, {8}});
  Tensor right({8});
  right.add({{0}, {8}});
  right.stored(0, 5) = 99;  // damaged; both are called chunk0
  const TargetPiece a = left.piece();
  const TargetPiece b = right.piece();
  test::expect_error(ErrorCode::kZipCrc, "chunk0: 'w'", [&] {
    visit_pairs(std::span(&a, 1), std::span(&b, 1), {}, [](const TensorBlockPair&) {});
  });
}

TEST(VisitPairs, other_shapes_are_refused) {
  const Tensor left({8});
  const Tensor right({4, 2});
  const TargetPiece a = left.piece();
  const TargetPiece b = right.piece();
  test::expect_error(ErrorCode::kShape, "'w': [0:8] beside [0:4, 0:2]", [&] {
    visit_pairs(std::span(&a, 1), std::span(&b, 1), {}, [](const TensorBlockPair&) {});
  });
}

}  // namespace
}  // namespace fsdp::formats
