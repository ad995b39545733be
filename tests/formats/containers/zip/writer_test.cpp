// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/writer.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/crc32.h"
#include "formats/containers/zip/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

// Every golden file and item that is a zip archive, as bytes by name.
std::map<std::string, std::vector<std::byte>> golden_archives() {
  std::map<std::string, std::vector<std::byte>> archives;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(test::data_path("golden"))) {
    const std::string extension = file.path().extension();
    if (extension != ".pt" && extension != ".distcp") continue;
    std::string rest = test::to_text(test::read_file(file.path()));
    // The items of a .distcp file follow one another; each ends with an end record without comment.
    const std::string end_signature = "PK\5\6";
    for (int item = 0; rest.starts_with("PK\3\4"); ++item) {
      const std::size_t end = rest.find(end_signature) + 22;
      archives[file.path().string() + " #" + std::to_string(item)] =
          test::to_bytes(rest.substr(0, end));
      rest = rest.substr(end);
    }
  }
  return archives;
}

std::vector<std::byte> rebuild(const std::vector<std::byte>& original) {
  const MemorySource source(original);
  const ZipReader reader(source);
  const std::string& first = reader.entries().at(0).name;
  const std::string prefix = first.substr(0, first.find('/'));
  ZipWriter writer(prefix);
  for (const ZipEntry& entry : reader.entries()) {
    writer.add(entry.name.substr(prefix.size() + 1), entry.uncompressed_bytes);
  }
  std::vector<std::byte> bytes(writer.archive_bytes());
  const auto write_at = [&](std::uint64_t offset, std::span<const std::byte> piece) {
    ASSERT_LE(offset + piece.size(), bytes.size());
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  };
  for (std::size_t i = 0; i < reader.entries().size(); ++i) {
    const ZipEntry& entry = reader.entries()[i];
    const auto payload = read_bytes(source, entry.data_offset, entry.compressed_bytes);
    write_at(writer.payload_offset(i), payload);
    if (!reader.without_crcs()) writer.set_crc(i, crc32(0, payload));
  }
  writer.write_structure(write_at);
  return bytes;
}

TEST(ZipWriter, rebuilds_every_archive_by_pytorch_byte_for_byte) {
  const auto archives = golden_archives();
  ASSERT_GT(archives.size(), 100U);
  for (const auto& [name, bytes] : archives) EXPECT_EQ(rebuild(bytes), bytes) << name;
}

struct Piece {
  std::uint64_t offset;
  std::vector<std::byte> bytes;
  bool operator==(const Piece&) const = default;
};

// tests/data/zip/torch_zip64.txt: a line with a position, then lines of indented hexadecimal bytes.
std::vector<Piece> read_pieces(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<Piece> pieces;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    if (!line.starts_with(' ')) {
      pieces.push_back({std::stoull(line), {}});
      continue;
    }
    for (std::size_t at = 2; at < line.size(); at += 2) {
      pieces.back().bytes.push_back(
          static_cast<std::byte>(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
  }
  return pieces;
}

// Zeros except for some pieces: an archive far larger than memory.
class SparseSource : public ByteSource {
 public:
  explicit SparseSource(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  std::uint64_t size() const override {
    return pieces_.back().offset + pieces_.back().bytes.size();
  }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
    for (const Piece& piece : pieces_) {
      for (std::size_t i = 0; i < piece.bytes.size(); ++i) {
        const std::uint64_t at = piece.offset + i;
        if (at >= offset && at - offset < out.size()) out[at - offset] = piece.bytes[i];
      }
    }
  }

 private:
  std::vector<Piece> pieces_;
};

TEST(ZipWriter, writes_the_structure_of_pytorch_for_a_payload_of_5_gib) {
  const auto expected = read_pieces(test::data_path("zip/torch_zip64.txt"));
  const SparseSource source(expected);
  const ZipReader reader(source);
  ASSERT_EQ(reader.entries().size(), 9U);
  EXPECT_EQ(reader.find("big/data/0")->uncompressed_bytes, 5ULL << 30U);
  EXPECT_GT(reader.find("big/data/1")->header_offset, 5ULL << 30U);
  EXPECT_FALSE(reader.without_crcs());

  ZipWriter writer("big");
  for (const ZipEntry& entry : reader.entries()) {
    const std::size_t record = writer.add(entry.name.substr(4), entry.uncompressed_bytes);
    EXPECT_EQ(writer.payload_offset(record), entry.data_offset) << entry.name;
    writer.set_crc(record, entry.crc);
  }
  EXPECT_EQ(writer.archive_bytes(), source.size());
  std::vector<Piece> written;
  writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> bytes) {
    written.push_back({offset, {bytes.begin(), bytes.end()}});
  });
  ASSERT_EQ(written.size(), expected.size());
  for (std::size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i], expected[i]) << i;
}

TEST(ZipWriter, zip64_begins_at_all_ones) {
  for (const std::uint64_t bytes : {0xFFFFFFFEULL, 0xFFFFFFFFULL, 0x100000000ULL}) {
    ZipWriter writer("archive");
    writer.add("data/0", bytes);
    writer.add("data/1", 1);
    std::vector<Piece> pieces;
    writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
      pieces.push_back({offset, {piece.begin(), piece.end()}});
    });
    EXPECT_EQ(pieces.size(), 3U);
    const SparseSource source(pieces);
    EXPECT_EQ(source.size(), writer.archive_bytes());
    const ZipReader reader(source);
    EXPECT_EQ(reader.find("archive/data/0")->uncompressed_bytes, bytes);
    EXPECT_EQ(reader.find("archive/data/1")->data_offset, writer.payload_offset(1));
    const bool wide = bytes >= 0xFFFFFFFF;
    EXPECT_EQ(pieces[1].offset + (wide ? 24 : 16), reader.find("archive/data/1")->header_offset);
  }
}

TEST(ZipWriter, aligns_every_payload) {
  for (const std::uint64_t alignment : {1U, 2U, 64U, 4096U, 32768U}) {
    ZipWriter writer("archive", alignment);
    std::vector<Piece> pieces;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::size_t record = writer.add("data/" + std::to_string(i), i * 13);
      EXPECT_EQ(writer.payload_offset(record) % alignment, 0U) << alignment << " " << i;
    }
    writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
      pieces.push_back({offset, {piece.begin(), piece.end()}});
    });
    const SparseSource source(pieces);
    const ZipReader reader(source);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(reader.entries()[i].data_offset, writer.payload_offset(i)) << alignment;
      EXPECT_EQ(reader.entries()[i].uncompressed_bytes, i * 13) << alignment;
    }
  }
}

TEST(ZipWriter, an_archive_without_records_is_valid) {
  const ZipWriter writer("archive");
  std::vector<Piece> pieces;
  writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
    pieces.push_back({offset, {piece.begin(), piece.end()}});
  });
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].bytes.size(), 98U);
  EXPECT_EQ(writer.archive_bytes(), 98U);
  EXPECT_TRUE(ZipReader(SparseSource(pieces)).entries().empty());
}

TEST(ZipWriter, more_than_65535_records_are_counted_by_zip64) {
  ZipWriter writer("archive");
  constexpr std::size_t kCount = 100'000;
  for (std::size_t i = 0; i < kCount; ++i) writer.add("data/" + std::to_string(i), 8);
  std::vector<std::byte> bytes(writer.archive_bytes());
  writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  });
  const MemorySource source(bytes);
  const ZipReader reader(source);
  EXPECT_EQ(reader.entries().size(), kCount);
  EXPECT_EQ(reader.find("archive/data/99999")->data_offset, writer.payload_offset(99999));
  EXPECT_TRUE(reader.without_crcs());
}

TEST(ZipWriter, refuses_what_a_header_cannot_hold) {
  ZipWriter writer("archive");
  test::expect_error(ErrorCode::kZipName, "has 65536 bytes, at most 65535",
                     [&] { writer.add(std::string(65536 - 8, 'n'), 1); });
  writer.add(std::string(65535 - 8, 'n'), 1);
  test::expect_error(ErrorCode::kOverflow, "size of an archive overflows",
                     [&] { writer.add("huge", ~std::uint64_t{0}); });
}

}  // namespace
}  // namespace fsdp::formats
