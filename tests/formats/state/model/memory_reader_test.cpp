// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/memory_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using Numbers = std::vector<float>;

// Storages of numbers, one after another in a file, with odd bytes before each.
class MemoryReaderTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kGap = 77;

  static Numbers numbers(std::size_t count, float first) {
    Numbers result(count);
    std::iota(result.begin(), result.end(), first);
    return result;
  }

  void write(const std::vector<Numbers>& storages) {
    path_ = dir_.path() / "storages";
    std::ofstream out(path_, std::ios::binary);
    for (const Numbers& storage : storages) {
      out << std::string(kGap, 'x');
      offsets_.push_back(static_cast<std::uint64_t>(out.tellp()));
      out.write(reinterpret_cast<const char*>(storage.data()),
                static_cast<std::streamsize>(storage.size() * sizeof(float)));
    }
    out.close();
    storages_ = storages;
    file_ = file_at(path_);
    // Makes separate reads come from the disk, if possible.
    ::fsync(file_->fd());
    ::posix_fadvise(file_->fd(), 0, 0, POSIX_FADV_DONTNEED);
  }

  // Returns rows [0, rows) of a chunk of `shape` that is storage `number`.
  SourceChunk chunk(std::size_t number, const Box& box) const {
    SourceChunk source{box, {}};
    source.data.source = file_;
    source.data.file = "storages";
    source.data.storage_offset = offsets_[number];
    source.data.file_offset = offsets_[number];
    source.data.storage_bytes = storages_[number].size() * sizeof(float);
    source.data.dtype = DType::kFloat32;
    source.data.crc = crc32(0, std::as_bytes(std::span(storages_[number])));
    return source;
  }

  static TargetPiece piece(const Box& box, std::vector<SourceChunk> sources) {
    TargetPiece piece;
    piece.key = "w";
    piece.dtype = DType::kFloat32;
    piece.box = box;
    piece.sources = [sources = std::move(sources)] { return sources; };
    return piece;
  }

  static MemoryPiece into(TargetPiece piece, Numbers& out, bool alone) {
    return {std::move(piece),
            [&out, alone] {
              return BlockTarget{std::as_writable_bytes(std::span(out)), alone};
            },
            nullptr};
  }

  test::TempDir dir_;
  std::filesystem::path path_;
  std::shared_ptr<const File> file_;
  std::vector<Numbers> storages_;
  std::vector<std::uint64_t> offsets_;
};

TEST_F(MemoryReaderTest, fills_pieces_of_any_size_alone_or_not) {
  // 12 MB, several runs of the disk; 4 bytes; 1.2 MB.
  write({numbers(3'000'000, 0), numbers(1, 5), numbers(300'000, 7)});
  for (const bool alone : {true, false}) {
    std::vector<Numbers> found = {Numbers(3'000'000), Numbers(1), Numbers(300'000)};
    std::vector<MemoryPiece> pieces;
    std::set<std::size_t> done;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Box box = whole_box(std::vector{static_cast<std::int64_t>(found[i].size())});
      pieces.push_back(into(piece(box, {chunk(i, box)}), found[i], alone));
      pieces.back().done = [&, i] {
        EXPECT_TRUE(found[i] == storages_[i]) << "a piece is filled before it is done";
        EXPECT_TRUE(done.insert(i).second);
      };
    }
    EXPECT_TRUE(read_into_memory(pieces, true).empty());
    EXPECT_EQ(done.size(), pieces.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i] == storages_[i]) << i;
  }
}

TEST_F(MemoryReaderTest, rows_of_two_chunks_become_one_piece) {
  write({numbers(1'200'000, 0), numbers(1'200'000, 1'200'000)});
  // Rows 1000 to 2200 of 2400 rows of 1000.
  const Box box{{1000, 0}, {1200, 1000}};
  Numbers found(1'200'000);
  const std::vector pieces = {
      into(piece(box, {chunk(0, {{0, 0}, {1200, 1000}}), chunk(1, {{1200, 0}, {1200, 1000}})}),
           found, true)};
  const auto partial = read_into_memory(pieces, true);
  EXPECT_TRUE(found == numbers(1'200'000, 1'000'000));
  EXPECT_EQ(partial.size(), 2U) << "of both storages some rows were not read";
}

TEST_F(MemoryReaderTest, columns_are_cast_on_the_way) {
  write({numbers(6'000, 0)});
  const Box left{{0, 0}, {3, 1000}};  // of 3 rows of 2000
  std::vector<double> found(3'000);
  TargetPiece half = piece(left, {chunk(0, {{0, 0}, {3, 2000}})});
  half.cast_to = DType::kFloat64;
  const MemoryPiece pieces[] = {
      {std::move(half),
       [&] {
         return BlockTarget{std::as_writable_bytes(std::span(found)), true};
       },
       nullptr}};
  read_into_memory(pieces, true);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t column = 0; column < 1000; ++column)
      ASSERT_EQ(found[row * 1000 + column], static_cast<double>(row * 2000 + column));
  }
}

TEST_F(MemoryReaderTest, a_flipped_bit_is_an_error_and_not_done) {
  write({numbers(2'000'000, 0), numbers(2'000'000, 9)});
  std::fstream change(path_, std::ios::binary | std::ios::in | std::ios::out);
  change.seekp(static_cast<std::streamoff>(offsets_[1] + 5'000'003));
  change.put('\x7e');
  change.close();
  std::vector<Numbers> found(2, Numbers(2'000'000));
  std::vector<MemoryPiece> pieces;
  bool second_done = false;
  for (std::size_t i = 0; i < 2; ++i) {
    const Box box = whole_box(std::vector<std::int64_t>{2'000'000});
    pieces.push_back(into(piece(box, {chunk(i, box)}), found[i], true));
  }
  pieces[1].done = [&] { second_done = true; };
  try {
    read_into_memory(pieces, true);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
    EXPECT_NE(std::string(error.what()).find("at byte " + std::to_string(offsets_[1])),
              std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(second_done);
  EXPECT_NO_THROW(read_into_memory(pieces, false));
  EXPECT_TRUE(second_done);
}

TEST_F(MemoryReaderTest, a_storage_that_is_read_in_part_is_compared_whole_where_that_is_asked_for) {
  write({numbers(2'000'000, 0)});
  const Box box = whole_box(std::vector<std::int64_t>{2'000'000});
  Numbers found(1'000);
  const std::vector pieces = {into(piece({{0}, {1'000}}, {chunk(0, box)}), found, false)};
  const MemoryReadOptions whole{2, true, nullptr};
  EXPECT_TRUE(read_into_memory(pieces, true, whole).empty());
  std::fstream change(path_, std::ios::binary | std::ios::in | std::ios::out);
  change.seekp(static_cast<std::streamoff>(offsets_[0] + 5'000'003));
  change.put('\x7e');
  change.close();
  EXPECT_EQ(read_into_memory(pieces, true).size(), 1U) << "what was read is as it was";
  try {
    read_into_memory(pieces, true, whole);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kZipCrc);
  }
  const MemoryReadOptions stopped{1, false, [] { return true; }};
  EXPECT_THROW(read_into_memory(pieces, true, stopped), Error);
}

TEST_F(MemoryReaderTest, pieces_are_expected_before_they_are_located) {
  write(std::vector<Numbers>(40, numbers(10, 0)));
  std::vector<Numbers> found(40, Numbers(10));
  std::vector<MemoryPiece> pieces;
  std::vector<int> expected(40);
  const Box box = whole_box(std::vector<std::int64_t>{10});
  for (std::size_t i = 0; i < 40; ++i) {
    TargetPiece target = piece(box, {});
    target.expect = [&, i](ElementRange part) {
      EXPECT_EQ(part.count, 10U);
      ++expected[i];
      return false;
    };
    target.sources = [&, i] {
      EXPECT_EQ(expected[i], 1);
      EXPECT_EQ(expected[std::min<std::size_t>(i + 1, 39)], 1) << "the next one, too";
      return std::vector{chunk(i, box)};
    };
    pieces.push_back(into(std::move(target), found[i], false));
  }
  read_into_memory(pieces, true);
  EXPECT_EQ(std::count(expected.begin(), expected.end(), 1), 40);
}

// Where they say that more hints are worth giving, all pieces get theirs at once.
TEST_F(MemoryReaderTest, hints_are_given_as_long_as_they_are_worth_it) {
  write(std::vector<Numbers>(40, numbers(10, 0)));
  std::vector<Numbers> found(40, Numbers(10));
  std::vector<MemoryPiece> pieces;
  std::size_t expected = 0;
  const Box box = whole_box(std::vector<std::int64_t>{10});
  for (std::size_t i = 0; i < 40; ++i) {
    TargetPiece target = piece(box, {});
    target.expect = [&](ElementRange) { return ++expected < 30; };
    target.sources = [&, i] {
      EXPECT_EQ(expected, std::min<std::size_t>(30 + i, 40)) << "one more for each that is read";
      return std::vector{chunk(i, box)};
    };
    pieces.push_back(into(std::move(target), found[i], false));
  }
  read_into_memory(pieces, true);
  EXPECT_EQ(expected, 40U);
}

}  // namespace
}  // namespace fsdp::formats
