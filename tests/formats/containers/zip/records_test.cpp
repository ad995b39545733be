// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/records.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace fsdp::formats::zip {
namespace {

std::vector<std::byte> counting_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

template <typename Record>
class ZipRecord : public ::testing::Test {};
using Records =
    ::testing::Types<LocalHeader, CentralHeader, Zip64EndRecord, Zip64Locator, EndRecord>;
TYPED_TEST_SUITE(ZipRecord, Records);

TYPED_TEST(ZipRecord, encoding_is_the_inverse_of_decoding) {
  const auto bytes = counting_bytes(TypeParam::kBytes);
  std::vector<std::byte> encoded;
  encode(decode<TypeParam>(bytes), encoded);
  EXPECT_EQ(encoded, bytes);
}

TEST(ZipRecords, the_end_of_an_archive_by_pytorch_decodes) {
  const auto bytes = test::read_data("golden/2.11.0/bare_tensor_pt/full.pt");
  const std::span<const std::byte> tail = std::span(bytes).last(98);
  const auto record = decode<Zip64EndRecord>(tail);
  EXPECT_EQ(record.signature, Zip64EndRecord::kSignature);
  EXPECT_EQ(record.rest_bytes, 44U);
  EXPECT_EQ(record.version_made_by, 0x031E);
  EXPECT_EQ(record.entries, 7U);
  EXPECT_EQ(record.directory_offset + record.directory_bytes, bytes.size() - 98);
  const auto locator = decode<Zip64Locator>(tail.subspan(56));
  EXPECT_EQ(locator.signature, Zip64Locator::kSignature);
  EXPECT_EQ(locator.record_offset, bytes.size() - 98);
  EXPECT_EQ(locator.disks, 1U);
  const auto end = decode<EndRecord>(tail.subspan(76));
  EXPECT_EQ(end.signature, EndRecord::kSignature);
  EXPECT_EQ(end.entries, 7);
  EXPECT_EQ(end.directory_offset, record.directory_offset);
}

TEST(ZipRecords, a_descriptor_is_told_by_its_size) {
  const DataDescriptor descriptor{0x12345678, 3, 4};
  for (const bool wide : {false, true}) {
    std::vector<std::byte> bytes;
    encode_descriptor(descriptor, wide, bytes);
    ASSERT_EQ(bytes.size(), wide ? 24U : 16U);
    for (const std::size_t skipped : {0U, 4U}) {
      const auto decoded = decode_descriptor(std::span(bytes).subspan(skipped));
      ASSERT_TRUE(decoded) << wide << skipped;
      EXPECT_EQ(decoded->crc, descriptor.crc);
      EXPECT_EQ(decoded->compressed_bytes, 3U);
      EXPECT_EQ(decoded->uncompressed_bytes, 4U);
    }
    bytes[0] ^= std::byte{1};
    EXPECT_FALSE(decode_descriptor(bytes)) << "another signature";
  }
  EXPECT_FALSE(decode_descriptor(counting_bytes(0)));
  EXPECT_FALSE(decode_descriptor(counting_bytes(13)));
}

TEST(ZipRecords, extra_fields_must_fill_their_bytes) {
  std::vector<std::byte> bytes;
  encode_extra_head(kExtraZip64, 8, bytes);
  encode(std::uint64_t{0x0102030405060708}, bytes);
  encode_extra_head(kExtraPadding, 0, bytes);
  const auto fields = split_extra(bytes);
  ASSERT_TRUE(fields);
  ASSERT_EQ(fields->size(), 2U);
  EXPECT_EQ((*fields)[0].id, kExtraZip64);
  EXPECT_EQ((*fields)[0].data.size(), 8U);
  EXPECT_EQ((*fields)[1].id, kExtraPadding);
  EXPECT_TRUE((*fields)[1].data.empty());
  EXPECT_TRUE(split_extra({})->empty());
  for (const std::size_t length : {1U, 3U, 4U, 11U, 13U, 15U}) {
    EXPECT_FALSE(split_extra(std::span(bytes).first(length))) << length;
  }
}

}  // namespace
}  // namespace fsdp::formats::zip
