// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

using Numbers = std::vector<std::uint32_t>;

// A tensor 0, 1, 2, ... of a shape, cut into chunks in memory, and an output file to copy it
// to.
class Fixture {
 public:
  explicit Fixture(std::vector<std::int64_t> shape)
      : shape_(std::move(shape)), whole_(whole_box(shape_)) {
    truth_.resize(volume(whole_.view()));
    std::iota(truth_.begin(), truth_.end(), 0U);
    fd_ = ::memfd_create("out", 0);
    output_ = std::make_unique<OutputFile>(FileDescriptor(::dup(fd_)), "out");
  }
  Fixture(const Fixture&) = delete;
  ~Fixture() { ::close(fd_); }

  // Makes a chunk of the tensor, stored row-major, or with its dimensions reversed.
  SourceChunk chunk(const Box& box, bool with_crc = true, bool transposed = false) {
    const std::vector<std::int64_t> strides = row_major_strides(shape_);
    Box stored = box;
    std::vector<std::size_t> order(shape_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (transposed) std::reverse(order.begin(), order.end());
    const std::uint64_t count = volume(box.view());
    auto numbers = std::make_unique<Numbers>(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t rest = i;
      std::uint64_t at = 0;
      for (std::size_t k = order.size(); k-- > 0;) {
        const std::size_t d = order[k];
        const auto size = static_cast<std::uint64_t>(box.size[d]);
        at += (static_cast<std::uint64_t>(box.offset[d]) + rest % size) *
              static_cast<std::uint64_t>(strides[d]);
        rest /= size;
      }
      (*numbers)[i] = truth_[at];
    }
    SourceChunk source{box, {}};
    source.data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(*numbers)));
    source.data.file = "chunk" + std::to_string(storages_.size());
    source.data.storage_bytes = count * 4;
    source.data.dtype = DType::kFloat32;
    if (with_crc) source.data.crc = crc32(0, std::as_bytes(std::span(*numbers)));
    if (transposed) {
      source.data.strides.resize(shape_.size());
      std::int64_t stride = 1;
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        source.data.strides[d] = stride;
        stride *= box.size[d];
      }
    }
    storages_.push_back(std::move(numbers));
    return source;
  }

  TargetPiece piece(std::vector<SourceChunk> sources) {
    TargetPiece piece;
    piece.key = "w";
    piece.dtype = DType::kFloat32;
    piece.box = whole_;
    piece.file = output_.get();
    piece.offset = 12;
    piece.sources = [sources = std::move(sources)] { return sources; };
    return piece;
  }

  Numbers written() const {
    Numbers out(truth_.size());
    EXPECT_EQ(::pread(fd_, out.data(), out.size() * 4, 12), static_cast<ssize_t>(out.size() * 4));
    return out;
  }
  const Numbers& truth() const { return truth_; }
  std::uint32_t truth_crc() const { return crc32(0, std::as_bytes(std::span(truth_))); }
  Numbers& storage(std::size_t i) { return *storages_[i]; }
  const Box& whole() const { return whole_; }

 private:
  std::vector<std::int64_t> shape_;
  Box whole_;
  Numbers truth_;
  int fd_ = -1;
  std::unique_ptr<OutputFile> output_;
  std::vector<std::unique_ptr<Numbers>> storages_;
};

CopyResult run(const TargetPiece& piece, unsigned threads = 2, std::uint64_t buffer = 1U << 20U) {
  CopyOptions options;
  options.threads = threads;
  options.max_buffer_bytes = buffer;
  return copy_pieces(std::span(&piece, 1), options);
}

TEST(CopyPieces, rows_of_several_chunks_are_joined_and_checked) {
  Fixture f({1000, 700});  // 2.8 MB: several blocks a chunk
  const auto result = run(f.piece({f.chunk({{0, 0}, {400, 700}}), f.chunk({{400, 0}, {599, 700}}),
                                   f.chunk({{999, 0}, {1, 700}})}));
  EXPECT_EQ(f.written(), f.truth());
  EXPECT_EQ(result.crcs.at(0), f.truth_crc());
  EXPECT_EQ(result.bytes, 2'800'000U);
  EXPECT_EQ(result.unchecked_bytes, 0U);
}

TEST(CopyPieces, columns_and_grids_are_joined_in_any_order_of_chunks) {
  Fixture f({300, 500});
  run(f.piece({f.chunk({{0, 200}, {300, 300}}), f.chunk({{100, 0}, {200, 200}}),
               f.chunk({{0, 0}, {100, 200}})}));
  EXPECT_EQ(f.written(), f.truth());
}

TEST(CopyPieces, transposed_chunks_are_joined_with_little_memory) {
  Fixture f({600, 400});
  const auto result = run(f.piece({f.chunk({{0, 0}, {600, 150}}, true, true),
                                   f.chunk({{0, 150}, {600, 250}}, true, true)}),
                          2, 0);
  EXPECT_EQ(f.written(), f.truth());
  EXPECT_EQ(result.crcs.at(0), f.truth_crc());
}

TEST(CopyPieces, random_tilings_of_three_dimensions_are_joined) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    Fixture f({23, 17, 31});
    std::vector<Box> boxes = {f.whole()};
    for (int cut = 0; cut < 10; ++cut) {
      const std::size_t which = random() % boxes.size();
      const std::size_t d = random() % 3;
      if (boxes[which].size[d] < 2) continue;
      Box second = boxes[which];
      const std::int64_t at =
          1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(second.size[d] - 1));
      boxes[which].size[d] = at;
      second.offset[d] += at;
      second.size[d] -= at;
      boxes.push_back(second);
    }
    std::vector<SourceChunk> sources;
    for (const Box& box : boxes) sources.push_back(f.chunk(box, true, random() % 2 == 0));
    const auto result = run(f.piece(sources), 1 + static_cast<unsigned>(random() % 3));
    ASSERT_EQ(f.written(), f.truth());
    ASSERT_EQ(result.crcs.at(0), f.truth_crc());
  }
}

TEST(CopyPieces, a_part_of_a_tensor_checks_the_whole_of_each_chunk) {
  Fixture f({100, 10});
  TargetPiece piece = f.piece({f.chunk({{0, 0}, {50, 10}}), f.chunk({{50, 0}, {50, 10}})});
  piece.box = {{40, 0}, {20, 10}};
  EXPECT_NO_THROW(run(piece));
  f.storage(0)[3] ^= 1U;  // row 0, which is not wanted
  try {
    run(piece);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
  }
}

TEST(CopyPieces, a_flipped_bit_is_named_with_file_key_and_both_sums) {
  for (const bool transposed : {false, true}) {
    Fixture f({64, 64});
    const TargetPiece piece = f.piece({f.chunk({{0, 0}, {32, 64}}, true, transposed),
                                       f.chunk({{32, 0}, {32, 64}}, true, transposed)});
    f.storage(1)[100] ^= 0x10000U;
    try {
      run(piece);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
      EXPECT_THAT(error.what(),
                  testing::MatchesRegex(
                      "chunk1: 'w': data at byte 0: CRC-32 stored [0-9a-f]+, computed [0-9a-f]+"));
    }
  }
}

TEST(CopyPieces, storages_without_a_checksum_are_counted) {
  Fixture f({10});
  EXPECT_EQ(run(f.piece({f.chunk({{0}, {4}}, false), f.chunk({{4}, {6}})})).unchecked_bytes, 16U);
}

TEST(CopyPieces, a_hole_is_an_error_even_when_nobody_checked_before) {
  Fixture f({10, 2});
  for (const bool transposed : {false, true}) {
    try {
      run(f.piece({f.chunk({{0, 0}, {4, 2}}, true, transposed), f.chunk({{5, 0}, {5, 2}})}));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kHole);
    }
  }
  EXPECT_THROW(run(f.piece({})), Error);
}

TEST(CopyPieces, empty_and_rank_0_tensors_have_their_crc) {
  Fixture empty({0, 3});
  EXPECT_EQ(run(empty.piece({})).crcs.at(0), 0U);
  Fixture scalar(std::vector<std::int64_t>{});
  EXPECT_EQ(run(scalar.piece({scalar.chunk(Box{})})).crcs.at(0), scalar.truth_crc());
  EXPECT_EQ(scalar.written(), scalar.truth());
}

// Who waits for the last piece of a file would wait for ever for one that is never told of.
TEST(CopyPieces, each_piece_is_told_of_once_also_without_bytes) {
  Fixture f({40, 100});
  std::vector<TargetPiece> pieces;
  const auto add = [&](std::int64_t row, std::int64_t rows) {
    pieces.push_back(f.piece({f.chunk(f.whole())}));
    pieces.back().box = {{row, 0}, {rows, 100}};
    pieces.back().offset += static_cast<std::uint64_t>(row) * 400;
  };
  add(0, 0);
  add(0, 10);
  add(10, 0);
  add(10, 0);
  add(10, 30);
  add(40, 0);
  for (const unsigned threads : {1U, 3U}) {
    CopyOptions options;
    options.threads = threads;
    options.max_buffer_bytes = 4000;
    std::mutex mutex;
    std::vector<std::vector<std::uint32_t>> told(pieces.size());
    options.on_piece = [&](std::size_t piece, std::uint32_t crc) {
      const std::lock_guard lock(mutex);
      told.at(piece).push_back(crc);
    };
    const CopyResult result = copy_pieces(pieces, options);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      EXPECT_THAT(told[i], testing::ElementsAre(result.crcs.at(i))) << i;
    EXPECT_EQ(told[0].at(0), 0U);
    // Without pieces that have bytes, too.
    const CopyResult none = copy_pieces(std::span(pieces).subspan(2, 2), options);
    EXPECT_EQ(none.bytes, 0U);
    EXPECT_EQ(told[0].size(), 2U);
    EXPECT_EQ(told[1].size(), 2U);
  }
}

TEST(CopyPieces, conjugated_columns_are_resolved_on_the_way) {
  // One complex number a row and chunk; the second chunk is stored conjugated.
  std::vector<float> left = {1, 2, 5, 6};
  std::vector<float> right = {3, 4, 7, 8};
  const auto source = [](std::vector<float>& numbers, std::int64_t column, bool conjugate) {
    SourceChunk chunk{{{0, column}, {2, 1}}, {}};
    chunk.data.source = std::make_shared<MemorySource>(std::as_bytes(std::span(numbers)));
    chunk.data.file = "chunk" + std::to_string(column);
    chunk.data.storage_bytes = 16;
    chunk.data.dtype = DType::kComplex64;
    chunk.data.conjugate = conjugate;
    return chunk;
  };
  Fixture f({8});
  TargetPiece piece = f.piece({});
  piece.dtype = DType::kComplex64;
  piece.box = whole_box(std::vector<std::int64_t>{2, 2});
  piece.sources = [&] {
    return std::vector<SourceChunk>{source(left, 0, false), source(right, 1, true)};
  };
  run(piece);
  const Numbers bits = f.written();
  std::vector<float> out(8);
  std::memcpy(out.data(), bits.data(), 32);
  EXPECT_EQ(out, (std::vector<float>{1, 2, 3, -4, 5, 6, 7, -8}));
}

TEST(CopyPieces, a_wish_to_stop_ends_the_copy) {
  Fixture f({10});
  const TargetPiece piece = f.piece({f.chunk({{0}, {10}})});
  CopyOptions options;
  options.cancelled = [] { return true; };
  try {
    copy_pieces(std::span(&piece, 1), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
}

TEST(CopyPieces, progress_counts_up_to_all_bytes) {
  Fixture f({1000, 1000});
  const TargetPiece piece = f.piece({f.chunk({{0, 0}, {1000, 1000}})});
  std::uint64_t last = 0;
  CopyOptions options;
  options.threads = 2;
  options.on_progress = [&](std::uint64_t bytes) {
    EXPECT_GT(bytes, last);
    last = bytes;
  };
  copy_pieces(std::span(&piece, 1), options);
  EXPECT_EQ(last, 4'000'000U);
}

TEST(CopyPieces, a_failed_write_reaches_the_caller) {
  Fixture f({10});
  TargetPiece piece = f.piece({f.chunk({{0}, {10}})});
  OutputFile closed{FileDescriptor(-1), "closed"};
  piece.file = &closed;
  EXPECT_THROW(run(piece), Error);
}

// Runs the copy as a team of threads.  Returns each member's result.
std::vector<CopyResult> run_together(std::span<const TargetPiece> pieces, std::size_t ranks,
                                     std::vector<std::string>* errors = nullptr) {
  std::vector<CopyResult> results(ranks);
  auto found = test::run_team(ranks, [&](Team& team) {
    CopyOptions options;
    options.threads = 2;
    options.max_buffer_bytes = 1U << 20U;
    options.team = &team;
    results[team.rank()] = copy_pieces(pieces, options);
  });
  if (errors != nullptr) *errors = std::move(found);
  return results;
}

// Two files of eight pieces each, in the order of the files.
TEST(CopyPieces, several_threads_write_several_files_at_once) {
  constexpr std::size_t kPieces = 8;
  std::vector<std::unique_ptr<Fixture>> fixtures;
  std::vector<TargetPiece> pieces;
  for (std::size_t i = 0; i < 2 * kPieces; ++i) {
    fixtures.push_back(std::make_unique<Fixture>(std::vector<std::int64_t>{300, 1000}));
    Fixture& f = *fixtures.back();
    pieces.push_back(f.piece({f.chunk({{0, 0}, {150, 1000}}), f.chunk({{150, 0}, {150, 1000}})}));
  }
  const int first = ::memfd_create("first", 0);
  const int second = ::memfd_create("second", 0);
  OutputFile files[] = {{FileDescriptor(::dup(first)), "first"},
                        {FileDescriptor(::dup(second)), "second"}};
  std::vector<OutputFile*> opened;  // the files of the pieces in the order of their reads
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].file = &files[i / kPieces];
    pieces[i].offset = i % kPieces * 300 * 4000;
    pieces[i].sources = [&opened, file = pieces[i].file, sources = pieces[i].sources] {
      opened.push_back(file);
      return sources();
    };
  }
  for (const unsigned threads : {1U, 2U, 4U, 8U}) {
    opened.clear();
    CopyOptions options;
    options.threads = threads;
    const CopyResult result = copy_pieces(pieces, options);
    ASSERT_EQ(opened.size(), 2 * kPieces);
    if (threads < 4) {
      EXPECT_TRUE(std::is_sorted(opened.begin(), opened.end())) << threads;
    } else {
      // One of each in turn.
      for (std::size_t i = 0; i < opened.size(); ++i) EXPECT_EQ(opened[i], &files[i % 2]) << i;
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(result.crcs[i], fixtures[i]->truth_crc()) << i;
      Numbers out(fixtures[i]->truth().size());
      const int fd = i < kPieces ? first : second;
      ASSERT_EQ(::pread(fd, out.data(), out.size() * 4, static_cast<off_t>(pieces[i].offset)),
                static_cast<ssize_t>(out.size() * 4));
      EXPECT_EQ(out, fixtures[i]->truth()) << i;
    }
    // Another round must not find the bytes of this one.
    for (const int fd : {first, second}) ASSERT_EQ(::ftruncate(fd, 0), 0);
  }
  ::close(first);
  ::close(second);
}

TEST(CopyPieces, a_team_writes_the_bytes_that_one_process_does) {
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 9U}) {
    for (const bool transposed : {false, true}) {
      Fixture f({500, 300});
      const TargetPiece piece =
          f.piece({f.chunk({{0, 0}, {200, 300}}, true, transposed),
                   f.chunk({{200, 0}, {100, 300}}, false, transposed),
                   f.chunk({{300, 0}, {200, 170}}), f.chunk({{300, 170}, {200, 130}})});
      const CopyResult alone = run(piece);
      const Numbers truth = f.written();
      for (const CopyResult& result : run_together(std::span(&piece, 1), ranks)) {
        EXPECT_EQ(result.crcs, alone.crcs);
        EXPECT_EQ(result.bytes, alone.bytes);
        EXPECT_EQ(result.unchecked_bytes, alone.unchecked_bytes);
      }
      EXPECT_EQ(f.written(), truth);
      EXPECT_EQ(truth, f.truth());
    }
  }
}

TEST(CopyPieces, a_team_divides_several_pieces_and_empty_ones) {
  Fixture f({100, 100});
  std::vector<TargetPiece> pieces;
  for (int i = 0; i < 10; ++i) {
    pieces.push_back(f.piece({f.chunk(f.whole())}));
    pieces.back().box = {{i * 10, 0}, {10, 100}};
    pieces.back().offset += static_cast<std::uint64_t>(i) * 4000;
    pieces.push_back(f.piece({}));
    pieces.back().box = {{0, 0}, {0, 100}};
  }
  std::vector<std::string> errors;
  const auto results = run_together(pieces, 4, &errors);
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_EQ(f.written(), f.truth());
  EXPECT_EQ(results[3].bytes, 40'000U);
  EXPECT_EQ(results[3].crcs, results[0].crcs);
}

// A source that counts the bytes that are read of it.
class CountedSource : public ByteSource {
 public:
  explicit CountedSource(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  std::uint64_t size() const override { return source_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    read += out.size();
    source_->read_at(offset, out);
  }
  mutable std::atomic<std::uint64_t> read{0};

 private:
  std::shared_ptr<const ByteSource> source_;
};

TEST(CopyPieces, a_team_reads_no_byte_twice_though_storages_are_divided) {
  Fixture f({600, 600});
  SourceChunk chunk = f.chunk(f.whole());
  const auto counted = std::make_shared<CountedSource>(chunk.data.source);
  chunk.data.source = counted;
  const TargetPiece piece = f.piece({chunk});
  std::vector<std::string> errors;
  run_together(std::span(&piece, 1), 3, &errors);
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_EQ(counted->read, 600U * 600U * 4U);
  // A flipped bit is found although no member reads the whole storage.
  f.storage(0)[100] ^= 1U;
  run_together(std::span(&piece, 1), 3, &errors);
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("chunk0: 'w': data at byte 0: CRC-32")));
}

TEST(CopyPieces, a_team_checks_what_no_member_needs) {
  Fixture f({100, 100});
  TargetPiece piece = f.piece({f.chunk(f.whole())});
  piece.box = {{40, 0}, {20, 100}};
  std::vector<std::string> errors;
  run_together(std::span(&piece, 1), 2, &errors);
  EXPECT_THAT(errors, testing::Each(""));
  f.storage(0)[3] ^= 1U;
  run_together(std::span(&piece, 1), 2, &errors);
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("CRC-32 stored")));
}

}  // namespace
}  // namespace fsdp::formats
