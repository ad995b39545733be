// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/reader.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/containers/zip/decompress.h"
#include "formats/containers/zip/writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const ZipReader& reader) {
  std::vector<std::string> names;
  for (const ZipEntry& entry : reader.entries()) names.push_back(entry.name);
  return names;
}

std::vector<std::byte> payload_of(const ByteSource& source, const ZipEntry& entry) {
  auto bytes = read_bytes(source, entry.data_offset, entry.compressed_bytes);
  if (!entry.deflated) return bytes;
  std::vector<std::byte> plain;
  inflate(MemorySource(bytes), entry.uncompressed_bytes, [&](std::span<const std::byte> piece) {
    plain.insert(plain.end(), piece.begin(), piece.end());
  });
  return plain;
}

TEST(ZipReader, lists_the_records_of_pytorch_in_the_order_of_the_directory) {
  const auto bytes = test::read_data("golden/2.11.0/bare_tensor_pt/full.pt");
  const MemorySource source(bytes);
  const ZipReader reader(source);
  EXPECT_THAT(
      names_of(reader),
      ElementsAre("full/data.pkl", "full/.format_version", "full/.storage_alignment",
                  "full/byteorder", "full/data/0", "full/version", "full/.data/serialization_id"));
  const ZipEntry* const version = reader.find("full/version");
  ASSERT_NE(version, nullptr);
  EXPECT_EQ(test::to_text(payload_of(source, *version)), "3\n");
  EXPECT_EQ(version->data_offset % 64, 0U);
  EXPECT_EQ(reader.find("full/data.pkl")->header_offset, 0U);
  EXPECT_EQ(reader.find("full/data/1"), nullptr);
  EXPECT_EQ(reader.find(""), nullptr);
  EXPECT_EQ(reader.find("full/versions"), nullptr);
  EXPECT_FALSE(reader.without_crcs());
}

TEST(ZipReader, every_file_by_pytorch_is_read_and_its_crcs_are_right) {
  std::size_t count = 0;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(test::data_path("golden"))) {
    if (file.path().filename() != "full.pt") continue;
    const auto bytes = test::read_file(file.path());
    if (!test::to_text(bytes).starts_with("PK")) continue;
    const MemorySource source(bytes);
    const ZipReader reader(source);
    const bool without_crcs = file.path().parent_path().filename() == "nocrc_pt";
    EXPECT_EQ(reader.without_crcs(), without_crcs) << file.path();
    for (const ZipEntry& entry : reader.entries()) {
      EXPECT_EQ(entry.data_offset % 64, 0U) << file.path();
      const auto payload = payload_of(source, entry);
      EXPECT_EQ(entry.crc, without_crcs ? 0 : crc32(0, payload)) << file.path() << entry.name;
    }
    ++count;
  }
  EXPECT_GE(count, 10U);
}

TEST(ZipReader, archives_by_other_writers_are_read) {
  struct Case {
    std::string file;
    std::vector<std::string> names;
  };
  const std::vector<std::string> both = {"archive/data.pkl", "archive/empty"};
  const std::vector<Case> cases = {
      {"stored.zip", both},
      {"deflated.zip", both},
      {"streamed.zip", both},
      {"zip64.zip", {"archive/data.pkl"}},
      {"streamed_zip64.zip", {"archive/data.pkl"}},
      {"info_zip.zip", {"archive/", "archive/data.pkl", "archive/empty"}},
      {"info_zip_streamed.zip", {"-"}},
      {"no_entries.zip", {}},
  };
  for (const Case& c : cases) {
    const auto bytes = test::read_data("zip/" + c.file);
    const MemorySource source(bytes);
    const ZipReader reader(source);
    EXPECT_THAT(names_of(reader), ::testing::UnorderedElementsAreArray(c.names)) << c.file;
    for (const ZipEntry& entry : reader.entries()) {
      const auto payload = payload_of(source, entry);
      EXPECT_EQ(crc32(0, payload), entry.crc) << c.file << entry.name;
      EXPECT_EQ(payload.size(), entry.uncompressed_bytes) << c.file << entry.name;
    }
  }
}

TEST(ZipReader, a_copy_finds_its_own_entries) {
  const auto bytes = test::read_data("zip/stored.zip");
  const MemorySource source(bytes);
  auto original = std::make_unique<ZipReader>(source);
  const ZipReader copy = *original;
  original.reset();
  ASSERT_NE(copy.find("archive/empty"), nullptr);
  EXPECT_EQ(copy.find("archive/empty")->name, "archive/empty");
}

// Counts the bytes read through it.
class CountingSource : public ByteSource {
 public:
  explicit CountingSource(const ByteSource& base) : base_(base) {}
  std::uint64_t size() const override { return base_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    ++reads_;
    bytes_ += out.size();
    base_.read_at(offset, out);
  }
  std::uint64_t reads() const { return reads_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const ByteSource& base_;
  mutable std::atomic<std::uint64_t> reads_ = 0;
  mutable std::atomic<std::uint64_t> bytes_ = 0;
};

std::vector<std::byte> archive_of(const std::vector<std::uint64_t>& sizes) {
  ZipWriter writer("archive");
  for (std::size_t i = 0; i < sizes.size(); ++i) writer.add(std::to_string(i), sizes[i]);
  std::vector<std::byte> bytes(writer.archive_bytes());
  writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  });
  return bytes;
}

TEST(ZipReader, payloads_are_not_read) {
  const auto bytes = archive_of({100, 10'000'000, 0, 5'000'000});
  const MemorySource memory(bytes);
  const CountingSource source(memory);
  EXPECT_EQ(ZipReader(source).entries().size(), 4U);
  EXPECT_LE(source.reads(), 4U + 3) << "end, directory, last descriptor, and one for each entry";
  EXPECT_LE(source.bytes(), 2000U);
}

TEST(ZipReader, an_item_behind_a_cache_of_its_ends_costs_two_reads) {
  const auto bytes = archive_of({400, 1, 2, 6, 5'000'000, 2, 40});
  const MemorySource memory(bytes);
  const CountingSource source(memory);
  const EndsCache cache(source, 4096, 4096);
  EXPECT_EQ(ZipReader(cache).entries().size(), 7U);
  EXPECT_EQ(source.reads(), 2U);
}

TEST(ZipReader, entries_and_directory_are_limited) {
  const auto bytes = archive_of({1, 2, 3});
  const MemorySource source(bytes);
  test::expect_error(ErrorCode::kLimitEntries, "zip: 3 entries, at most 2 are read",
                     [&] { ZipReader(source, ZipLimits{.max_entries = 2}); });
  test::expect_error(ErrorCode::kLimitSize, "bytes, at most 100 are read",
                     [&] { ZipReader(source, ZipLimits{.max_directory_bytes = 100}); });
  EXPECT_EQ(ZipReader(source, ZipLimits{.max_entries = 3}).entries().size(), 3U);
}

}  // namespace
}  // namespace fsdp::formats
