// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "formats/containers/zip/local_headers.h"
#include "formats/containers/zip/writer.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

// Fails if a byte before its last ones is read.
class TailSource : public ByteSource {
 public:
  TailSource(std::span<const std::byte> bytes, std::size_t tail)
      : base_(bytes), begin_(bytes.size() - std::min(bytes.size(), tail)) {}
  std::uint64_t size() const override { return base_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    EXPECT_GE(offset, begin_);
    base_.read_at(offset, out);
  }

 private:
  MemorySource base_;
  std::size_t begin_;
};

// Reads the archive in both ways.  Returns whether the directory was enough.
bool foretold(const std::vector<std::byte>& bytes, const std::string& name) {
  const MemorySource source(bytes);
  const ZipReader all(source);
  const ZipReader later(source, {}, {.later = true, .ahead = {}});
  EXPECT_EQ(later.entries().size(), all.entries().size()) << name;
  EXPECT_EQ(later.without_crcs(), all.without_crcs()) << name;
  for (std::size_t i = 0; i < all.entries().size(); ++i) {
    EXPECT_EQ(later.entries()[i].data_offset, all.entries()[i].data_offset)
        << name << " " << all.entries()[i].name;
  }
  return later.unread_headers();
}

std::vector<std::byte> archive_of(const std::vector<std::uint64_t>& sizes,
                                  std::uint64_t alignment) {
  ZipWriter writer("archive", alignment);
  for (std::size_t i = 0; i < sizes.size(); ++i) writer.add(std::to_string(i), sizes[i]);
  std::vector<std::byte> bytes(writer.archive_bytes());
  writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  });
  return bytes;
}

TEST(ForetoldPayloads, every_archive_by_pytorch_is_told_from_its_directory) {
  std::size_t count = 0;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(test::data_path("golden"))) {
    if (file.path().filename() != "full.pt") continue;
    const auto bytes = test::read_file(file.path());
    if (!test::to_text(bytes).starts_with("PK")) continue;
    EXPECT_TRUE(foretold(bytes, file.path())) << file.path();
    ++count;
  }
  EXPECT_GE(count, 10U);
}

TEST(ForetoldPayloads, alignments_of_pytorch_are_known) {
  const std::vector<std::uint64_t> sizes = {0, 1, 63, 64, 65, 5000, 0, 40, 47, 48, 49};
  EXPECT_TRUE(foretold(archive_of(sizes, 64), "64"));
  EXPECT_TRUE(foretold(archive_of(sizes, 4096), "4096"));
  EXPECT_FALSE(foretold(archive_of(sizes, 32), "32"));
}

TEST(ForetoldPayloads, archives_by_others_are_read_whole) {
  for (const char* name : {"stored.zip", "deflated.zip", "streamed.zip", "zip64.zip",
                           "streamed_zip64.zip", "info_zip.zip", "info_zip_streamed.zip"}) {
    EXPECT_FALSE(foretold(test::read_data(std::string("zip/") + name), name));
  }
}

TEST(ForetoldPayloads, only_the_end_is_read) {
  const auto bytes = archive_of({100, 100'000, 0, 300'000, 2}, 64);
  const TailSource source(bytes, 1000);
  const ZipReader reader(source, {}, {.later = true, .ahead = {}});
  EXPECT_TRUE(reader.unread_headers());
  EXPECT_EQ(reader.entries().size(), 5U);
}

// Counts the reads before the last bytes.
class CountedSource : public MemorySource {
 public:
  using MemorySource::MemorySource;
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset + kTail < size()) ++reads_;
    MemorySource::read_at(offset, out);
  }
  std::size_t reads() const { return reads_; }

 private:
  static constexpr std::uint64_t kTail = 1000;
  mutable std::size_t reads_ = 0;
};

TEST(ForetoldPayloads, headers_that_are_read_are_hinted_at_before) {
  const auto bytes = archive_of({100, 100'000, 0, 300'000, 2000}, 64);
  const CountedSource source(bytes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> hints;
  const auto ahead = [&](std::uint64_t offset, std::uint64_t count) {
    EXPECT_GE(hints.size(), source.reads());
    hints.emplace_back(offset, offset + count);
    return hints.size() % 2 != 0;  // room for two at first, and one more for each that is read
  };
  const ZipReader reader(source, {}, {.later = false, .ahead = ahead});
  EXPECT_EQ(source.reads(), 5U);
  ASSERT_EQ(hints.size(), 5U);
  for (std::size_t i = 0; i < hints.size(); ++i) {
    EXPECT_LE(hints[i].first, reader.entries()[i].header_offset);
    EXPECT_GE(hints[i].second, reader.entries()[i].data_offset);
  }
}

}  // namespace
}  // namespace fsdp::formats
