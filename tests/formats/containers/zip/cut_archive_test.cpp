// SPDX-License-Identifier: Apache-2.0
// The undamaged archive, which PyTorch wrote, is the reference.
#include "formats/containers/zip/cut_archive.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/crc32.h"
#include "formats/containers/zip/reader.h"
#include "formats/containers/zip/writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kDescriptorBytes = 16;

TEST(CutArchive, every_cut_leaves_the_records_before_it) {
  const auto bytes = test::read_data("golden/2.11.0/nested_pt/full.pt");
  const MemorySource source(bytes);
  const std::vector<ZipEntry> all = ZipReader(source).entries();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const MemorySource cut{std::span(bytes).first(length)};
    const auto whole = static_cast<std::size_t>(std::ranges::count_if(all, [&](const auto& entry) {
      return entry.data_offset + entry.uncompressed_bytes + kDescriptorBytes <= length;
    }));
    if (whole == 0) {
      test::expect_error(ErrorCode::kZipEocd, "no record", [&] { with_new_directory(cut); });
      continue;
    }
    const auto rebuilt = with_new_directory(cut);
    const std::vector<ZipEntry> found = ZipReader(*rebuilt).entries();
    ASSERT_EQ(found.size(), whole) << length;
    for (std::size_t i = 0; i < whole; ++i) {
      EXPECT_EQ(found[i].name, all[i].name);
      EXPECT_EQ(found[i].data_offset, all[i].data_offset);
      EXPECT_EQ(found[i].uncompressed_bytes, all[i].uncompressed_bytes);
      EXPECT_EQ(found[i].crc, all[i].crc);
    }
  }
}

TEST(CutArchive, a_damaged_directory_is_made_again_and_the_bytes_are_those_of_torch_save) {
  auto bytes = test::read_data("golden/2.11.0/nested_pt/full.pt");
  const auto original = bytes;
  bytes[bytes.size() - 150] ^= std::byte{1};
  bytes[0x3F] ^= std::byte{1};  // padding in front of a payload
  const MemorySource damaged(bytes);
  const auto rebuilt = with_new_directory(damaged);
  EXPECT_EQ(read_bytes(*rebuilt, 0, rebuilt->size()), original);
}

TEST(CutArchive, a_wrong_payload_ends_what_is_whole) {
  auto bytes = test::read_data("golden/2.11.0/nested_pt/full.pt");
  const MemorySource source(bytes);
  const std::vector<ZipEntry> all = ZipReader(source).entries();
  const auto storage = std::ranges::find_if(
      all, [](const ZipEntry& entry) { return entry.name.find("/data/") != std::string::npos; });
  ASSERT_NE(storage, all.end());
  bytes[storage->data_offset] ^= std::byte{1};
  const MemorySource damaged(bytes);
  const auto rebuilt = with_new_directory(damaged);
  EXPECT_EQ(ZipReader(*rebuilt).entries().size(), static_cast<std::size_t>(storage - all.begin()));
}

}  // namespace
}  // namespace fsdp::formats
