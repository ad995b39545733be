// SPDX-License-Identifier: Apache-2.0
// Lays out a zip archive exactly as torch.save does: stored records, payloads aligned by an "FB"
// extra field of 'Z', data descriptors, zip64 where needed and a zip64 end record always.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// All positions follow from names and sizes only.  So payloads may be written in any order, by any
// thread, and before their CRCs are known.  Nothing here does I/O.
class ZipWriter {
 public:
  // Writes `bytes` at `offset` of the archive.
  using WriteAt = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;

  // `prefix` is the folder of every record ("archive").  Requires: alignment is a power of two, at
  // most 32768.
  explicit ZipWriter(std::string prefix, std::uint64_t alignment = 64);

  // Appends a record of `bytes` bytes named prefix/name.  Returns its number.
  // Throws: kZipName if the name exceeds 65535 bytes, kOverflow.
  std::size_t add(std::string_view name, std::uint64_t bytes);
  // Returns the offset of the payload's first byte.
  std::uint64_t payload_offset(std::size_t record) const;
  // Returns the bytes of the whole archive with the records added so far.
  std::uint64_t archive_bytes() const;
  // Sets the CRC-32 of the record's payload, which is 0 before.
  void set_crc(std::size_t record, std::uint32_t crc);
  // Writes everything except the payloads: local headers, data descriptors, directory, end records.
  // Pieces come in ascending order, with adjacent ones joined, and the end records last.  The CRC
  // of a record that has bytes is needed only after the parts before these bytes were handed out.
  void write_structure(const WriteAt& write_at) const;

 private:
  struct Record {
    std::string name;
    std::uint64_t header_offset;
    std::uint64_t payload_offset;
    std::uint64_t bytes;
    std::uint32_t crc = 0;
  };
  static void encode_local(const Record& record, std::vector<std::byte>& out);
  static void encode_central(const Record& record, std::vector<std::byte>& out);
  void encode_ends(std::uint64_t directory_bytes, std::vector<std::byte>& out) const;

  std::string prefix_;
  std::uint64_t alignment_;
  std::vector<Record> records_;
  std::uint64_t end_ = 0;  // offset of the next local header, or of the directory
  std::uint64_t directory_bytes_ = 0;
};

}  // namespace fsdp::formats
