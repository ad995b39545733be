// SPDX-License-Identifier: Apache-2.0
// Archives that are cut, flipped, or inconsistent: each is reported with the expected code and
// words.
#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/crc32.h"
#include "formats/containers/zip/reader.h"
#include "formats/containers/zip/records.h"
#include "formats/containers/zip/writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace fsdp::formats {
namespace {

using Bytes = std::vector<std::byte>;

// A sound archive, and the positions of its parts.
struct Archive {
  explicit Archive(Bytes sound) : bytes(std::move(sound)) {
    end = bytes.size() - zip::EndRecord::kBytes;
    locator = end - zip::Zip64Locator::kBytes;
    zip64 = locator - zip::Zip64EndRecord::kBytes;
    directory = load_u32(bytes, end + 16);
    const MemorySource source(bytes);
    const ZipReader reader(source);
    for (std::size_t at = directory; const ZipEntry& entry : reader.entries()) {
      central.push_back(at);
      local.push_back(entry.header_offset);
      data.push_back(entry.data_offset);
      after.push_back(entry.data_offset + entry.compressed_bytes);
      at += zip::CentralHeader::kBytes + entry.name.size() + load_u16(bytes, at + 30);
    }
  }
  void put(std::size_t at, std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) {
      bytes[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
    }
  }
  void put16(std::size_t at, std::uint64_t value) { put(at, value, 2); }
  void put32(std::size_t at, std::uint64_t value) { put(at, value, 4); }
  void put64(std::size_t at, std::uint64_t value) { put(at, value, 8); }
  std::uint32_t get32(std::size_t at) const { return load_u32(bytes, at); }
  // Overwrites the name of an entry in local and central header.
  void rename(std::size_t entry, std::string_view name) {
    for (const std::size_t at : {local[entry] + 30, central[entry] + 46}) {
      std::copy_n(std::as_bytes(std::span(name)).begin(), name.size(),
                  bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  void insert(std::size_t at, const Bytes& more) {
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
  }
  void append(std::size_t begin, std::size_t finish) {
    const Bytes copy(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                     bytes.begin() + static_cast<std::ptrdiff_t>(finish));
    insert(bytes.size(), copy);
  }

  Bytes bytes;
  std::size_t end = 0, locator = 0, zip64 = 0, directory = 0;
  std::vector<std::size_t> central, local, data, after;  // by entry; `after` its payload
};

struct Case {
  std::string name;
  std::function<void(Archive&)> damage;
  ErrorCode code;
  std::string fragment;
};

void expect_all(const Archive& sound, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Archive archive = sound;
    c.damage(archive);
    test::expect_error(c.code, c.fragment, [&] { ZipReader(MemorySource(archive.bytes)); });
  }
}

// By PyTorch: full/data.pkl, .format_version, .storage_alignment, byteorder, data/0, version,
// .data/serialization_id.
Archive by_torch() {
  return Archive(test::read_data("golden/2.11.0/bare_tensor_pt/full.pt"));
}
constexpr std::size_t kStorage = 4;

// By Python: archive/data.pkl of 300 bytes, archive/empty.
Archive by_python() {
  return Archive(test::read_data("zip/stored.zip"));
}

TEST(ZipDamage, of_the_end_records_is_reported) {
  expect_all(
      by_torch(),
      {
          {"nothing", [](Archive& a) { a.bytes.clear(); }, ErrorCode::kZipEocd,
           "at least 22 bytes, but there are only 0"},
          {"no zip archive", [](Archive& a) { a.bytes.assign(5000, std::byte{'x'}); },
           ErrorCode::kZipEocd, "no end record in the last bytes of 5000"},
          {"10 bytes before", [](Archive& a) { a.insert(0, Bytes(10)); }, ErrorCode::kZipFraming,
           "does not begin at byte 0"},
          {"10 bytes after", [](Archive& a) { a.insert(a.bytes.size(), Bytes(10)); },
           ErrorCode::kZipFraming, "is followed by 10 bytes, expected none"},
          {"100000 bytes after", [](Archive& a) { a.insert(a.bytes.size(), Bytes(100'000)); },
           ErrorCode::kZipEocd, "no end record"},
          {"comment",
           [](Archive& a) {
             a.put16(a.end + 20, 5);
             a.insert(a.bytes.size(), Bytes(5, std::byte{'c'}));
           },
           ErrorCode::kZipFraming, "has a comment of 5 bytes"},
          {"two end records", [](Archive& a) { a.append(a.end, a.bytes.size()); },
           ErrorCode::kZipFraming, "there are two end records"},
          {"all end records twice", [](Archive& a) { a.append(a.zip64, a.bytes.size()); },
           ErrorCode::kZipFraming, "there are two end records"},
          {"an end record in the comment",
           [](Archive& a) {
             a.put16(a.end + 20, 22);
             const std::size_t end = a.end;
             a.append(end, end + 22);
             a.put16(a.bytes.size() - 2, 0);
           },
           ErrorCode::kZipFraming, "there are two end records"},
          {"comment length lies", [](Archive& a) { a.put16(a.end + 20, 1); }, ErrorCode::kZipEocd,
           "says comment_bytes 1"},
          {"count + 1",
           [](Archive& a) {
             a.put16(a.end + 8, 8);
             a.put16(a.end + 10, 8);
           },
           ErrorCode::kZipEocd, "says entries 8, the zip64 end record 7"},
          {"count - 1 on this disk", [](Archive& a) { a.put16(a.end + 8, 6); }, ErrorCode::kZipEocd,
           "6 of 7 entries"},
          {"directory offset", [](Archive& a) { a.put32(a.end + 16, a.directory + 1); },
           ErrorCode::kZipEocd, "says directory_offset"},
          {"directory size", [](Archive& a) { a.put32(a.end + 12, 1); }, ErrorCode::kZipEocd,
           "says directory_bytes 1"},
          {"disk 1", [](Archive& a) { a.put16(a.end + 4, 1); }, ErrorCode::kZipEocd,
           "spans disks: disk 1"},
          {"directory on disk 1", [](Archive& a) { a.put16(a.end + 6, 1); }, ErrorCode::kZipEocd,
           "directory on disk 1"},
          {"locator of two disks", [](Archive& a) { a.put32(a.locator + 16, 2); },
           ErrorCode::kZip64, "names disk 0 of 2"},
          {"locator elsewhere", [](Archive& a) { a.put64(a.locator + 8, a.zip64 + 1); },
           ErrorCode::kZip64, "expected it directly before"},
          {"no zip64 record", [](Archive& a) { a.put32(a.zip64, 0); }, ErrorCode::kZip64,
           "no zip64 end record at byte"},
          {"zip64 record too long", [](Archive& a) { a.put64(a.zip64 + 4, 45); }, ErrorCode::kZip64,
           "has 45 more bytes, expected 44"},
          {"zip64 disk", [](Archive& a) { a.put32(a.zip64 + 16, 1); }, ErrorCode::kZip64,
           "spans disks: disk 1"},
          {"zip64 directory offset", [](Archive& a) { a.put64(a.zip64 + 48, 1); },
           ErrorCode::kZip64, "at byte 1, expected it to end at"},
          {"zip64 made by", [](Archive& a) { a.put16(a.zip64 + 12, 0x031F); }, ErrorCode::kZip64,
           "says versions 799 and 45, expected 798 and 45"},
          {"entries in both records, not in the directory",
           [](Archive& a) {
             for (const std::size_t at : {a.end + 8, a.end + 10, a.zip64 + 24, a.zip64 + 32}) {
               a.put16(at, 8);
             }
           },
           ErrorCode::kZipEocd, "counts 8 entries, but the directory ends after 7"},
          {"10^7 entries",
           [](Archive& a) {
             a.put64(a.zip64 + 24, 10'000'000);
             a.put64(a.zip64 + 32, 10'000'000);
             a.put32(a.end + 8, 0xFFFFFFFF);
           },
           ErrorCode::kLimitEntries, "10000000 entries, at most 1000000"},
      });
}

TEST(ZipDamage, of_classic_end_records_is_reported) {
  expect_all(
      by_python(),
      {
          {"directory size", [](Archive& a) { a.put32(a.end + 12, a.get32(a.end + 12) + 1); },
           ErrorCode::kZipEocd, "expected it to end at byte"},
          {"all ones without zip64", [](Archive& a) { a.put32(a.end + 16, 0xFFFFFFFF); },
           ErrorCode::kZip64, "there is none before byte"},
          {"count + 1",
           [](Archive& a) {
             a.put16(a.end + 8, 3);
             a.put16(a.end + 10, 3);
           },
           ErrorCode::kZipEocd, "counts 3 entries, but the directory"},
          {"count - 1",
           [](Archive& a) {
             a.put16(a.end + 8, 1);
             a.put16(a.end + 10, 1);
           },
           ErrorCode::kZipEocd, "bytes more"},
          {"count of 65535",
           [](Archive& a) {
             a.put16(a.end + 8, 0xFFFF);
             a.put16(a.end + 10, 0xFFFF);
           },
           ErrorCode::kZipEocd, "the directory has only"},
          {"10 bytes before", [](Archive& a) { a.insert(0, Bytes(10)); }, ErrorCode::kZipFraming,
           "does not begin at byte 0"},
          {"two end records", [](Archive& a) { a.append(a.end, a.bytes.size()); },
           ErrorCode::kZipFraming, "there are two end records"},
      });
}

TEST(ZipDamage, of_the_directory_is_reported) {
  expect_all(
      by_torch(),
      {
          {"signature", [](Archive& a) { a.put32(a.central[1], 0); }, ErrorCode::kZipFraming,
           "no directory entry at byte"},
          {"name length", [](Archive& a) { a.put16(a.central[6] + 28, 60'000); },
           ErrorCode::kZipFraming, "has 60000 bytes of name, extra fields and comment"},
          {"encrypted", [](Archive& a) { a.put16(a.central[0] + 8, 0x0809); },
           ErrorCode::kUnsupported, "entry 'full/data.pkl' is encrypted"},
          {"method 99", [](Archive& a) { a.put16(a.central[0] + 10, 99); }, ErrorCode::kUnsupported,
           "has compression method 99"},
          {"unknown flag", [](Archive& a) { a.put16(a.central[0] + 8, 0x2808); },
           ErrorCode::kUnsupported, "has flags 10248"},
          {"disk", [](Archive& a) { a.put16(a.central[0] + 34, 1); }, ErrorCode::kUnsupported,
           "is on disk 1"},
          {"all ones without a zip64 field",
           [](Archive& a) { a.put32(a.central[kStorage] + 24, 0xFFFFFFFF); }, ErrorCode::kZip64,
           "has a zip64 field of 0 bytes, expected at least 8"},
          {"huge size",
           [](Archive& a) {
             a.put32(a.central[kStorage] + 20, 0x70000000);
             a.put32(a.central[kStorage] + 24, 0x70000000);
           },
           ErrorCode::kZipExtent, "does not end before the directory"},
          {"smaller size",
           [](Archive& a) {
             a.put32(a.central[kStorage] + 20, 1);
             a.put32(a.central[kStorage] + 24, 1);
           },
           ErrorCode::kZipExtent, "expected a data descriptor of 16 or 24 bytes between"},
          {"two sizes", [](Archive& a) { a.put32(a.central[kStorage] + 24, 1); },
           ErrorCode::kZipExtent, "is stored, but has"},
          {"deflates to far too much",
           [](Archive& a) {
             a.put16(a.central[kStorage] + 10, 8);
             a.put32(a.central[kStorage] + 24, 0x70000000);
           },
           ErrorCode::kLimitRatio, "more than 1032 times as much"},
          {"two at one place", [](Archive& a) { a.put32(a.central[1] + 42, a.local[kStorage]); },
           ErrorCode::kZipOverlap, "but entry"},
          {"one inside another", [](Archive& a) { a.put32(a.central[1] + 42, a.data[0] + 1); },
           ErrorCode::kZipOverlap, "goes on to byte"},
          {"offset of nothing", [](Archive& a) { a.put32(a.central[0] + 42, 0x7FFFFFFF); },
           ErrorCode::kZipExtent, "does not end before the directory"},
      });
}

TEST(ZipDamage, that_local_headers_show_is_reported) {
  expect_all(
      by_torch(),
      {
          {"signature", [](Archive& a) { a.put32(a.local[3], 0); }, ErrorCode::kZipMismatch,
           "no local header at byte"},
          {"name in the directory",
           [](Archive& a) { a.bytes[a.central[kStorage] + 46 + 10] = std::byte{'7'}; },
           ErrorCode::kZipMismatch, "names 'full/data/0' (11 bytes), the directory 'full/data/7'"},
          {"name length", [](Archive& a) { a.put16(a.local[kStorage] + 26, 12); },
           ErrorCode::kZipMismatch, "(12 bytes), the directory 'full/data/0' (11 bytes)"},
          {"method", [](Archive& a) { a.put16(a.local[kStorage] + 8, 8); }, ErrorCode::kZipMismatch,
           "says method 8, the directory 0"},
          {"deflated in the directory alone",
           [](Archive& a) { a.put16(a.central[kStorage] + 10, 8); }, ErrorCode::kZipMismatch,
           "says method 0, the directory 8"},
          {"flags", [](Archive& a) { a.put16(a.local[kStorage] + 6, 0x0800); },
           ErrorCode::kZipMismatch, "says flags 2048, the directory 2056"},
          {"time", [](Archive& a) { a.put16(a.local[kStorage] + 10, 1); }, ErrorCode::kZipMismatch,
           "says time 1, the directory 0"},
          {"size", [](Archive& a) { a.put32(a.local[kStorage] + 18, 5); }, ErrorCode::kZipMismatch,
           "says compressed_bytes 5, the directory"},
          {"crc", [](Archive& a) { a.put32(a.local[kStorage] + 14, 5); }, ErrorCode::kZipMismatch,
           "says crc 5, the directory"},
          {"extra length", [](Archive& a) { a.put16(a.local[kStorage] + 28, 60'000); },
           ErrorCode::kZipExtent, "does not end before the directory"},
          {"extra length short", [](Archive& a) { a.put16(a.local[kStorage] + 28, 5); },
           ErrorCode::kZipPadding, "local extra fields that do not fill their 5 bytes"},
          {"padding", [](Archive& a) { a.bytes[a.data[kStorage] - 1] = std::byte{'Y'}; },
           ErrorCode::kZipPadding, "is padded with byte value 89 at byte"},
          {"padding named otherwise", [](Archive& a) { a.bytes[a.local[0] + 43] = std::byte{'G'}; },
           ErrorCode::kZipPadding, "other than zip64 and padding, or no padding"},
          {"descriptor crc", [](Archive& a) { a.put32(a.after[kStorage] + 4, 1); },
           ErrorCode::kZipMismatch, "data descriptor of entry 'full/data/0' says crc 1"},
          {"descriptor size", [](Archive& a) { a.put32(a.after[kStorage] + 8, 1); },
           ErrorCode::kZipMismatch, "says compressed_bytes 1, the directory"},
          {"last descriptor", [](Archive& a) { a.put32(a.after[6] + 12, 1); },
           ErrorCode::kZipMismatch, "'full/.data/serialization_id' says uncompressed_bytes 1"},
          {"descriptor signature", [](Archive& a) { a.put32(a.after[kStorage], 1); },
           ErrorCode::kZipMismatch, "does not begin with its signature"},
          {"made by", [](Archive& a) { a.put16(a.central[2] + 4, 3); }, ErrorCode::kZipMismatch,
           "says version_made_by 3, expected 0 in an archive by torch.save"},
          {"attributes", [](Archive& a) { a.put32(a.central[2] + 38, 1); }, ErrorCode::kZipMismatch,
           "says external_attributes 1"},
      });
  expect_all(by_python(),
             {
                 {"size", [](Archive& a) { a.put32(a.local[0] + 22, 299); },
                  ErrorCode::kZipMismatch, "says uncompressed_bytes 299, the directory 300"},
                 {"size given as 0", [](Archive& a) { a.put32(a.local[0] + 22, 0); },
                  ErrorCode::kZipMismatch, "says uncompressed_bytes 0, the directory 300"},
                 {"version", [](Archive& a) { a.put16(a.local[0] + 4, 21); },
                  ErrorCode::kZipMismatch, "says version_needed 21, the directory 20"},
                 {"first entry not at 0",
                  [](Archive& a) {
                    a.insert(0, Bytes(4));
                    a.put32(a.end + 4 + 16, a.directory + 4);
                    a.put32(a.central[0] + 4 + 42, 4);
                    a.put32(a.central[1] + 4 + 42, static_cast<std::uint32_t>(a.local[1]) + 4);
                    std::copy_n(a.bytes.begin() + 4, 4, a.bytes.begin());
                  },
                  ErrorCode::kZipFraming, "the first entry begins at byte 4, expected 0"},
                 {"a gap before the directory",
                  [](Archive& a) {
                    a.insert(a.directory, Bytes(3));
                    a.put32(a.end + 3 + 16, a.directory + 3);
                  },
                  ErrorCode::kZipExtent, "expected nothing between"},
             });
}

TEST(ZipDamage, unsafe_and_repeated_names_are_refused) {
  expect_all(by_python(),
             {
                 {"absolute", [](Archive& a) { a.rename(1, "/rchive/empty"); }, ErrorCode::kZipName,
                  "entry name '/rchive/empty' is absolute"},
                 {"dot dot", [](Archive& a) { a.rename(1, "archive/../ty"); }, ErrorCode::kZipName,
                  "contains '..'"},
                 {"dot dot at the end", [](Archive& a) { a.rename(1, "archive/mp/.."); },
                  ErrorCode::kZipName, "contains '..'"},
                 {"backslash", [](Archive& a) { a.rename(1, "archive\\empty"); },
                  ErrorCode::kZipName, "entry name 'archive\\\\empty' contains a backslash"},
                 {"NUL", [](Archive& a) { a.rename(1, std::string_view("archive/\0mpty", 13)); },
                  ErrorCode::kZipName, "contains a NUL byte"},
             });
}

TEST(ZipDamage, names_that_are_equal_but_for_case_are_one_name) {
  const auto written = [](std::initializer_list<std::string_view> names) {
    ZipWriter writer("archive");
    for (const std::string_view name : names) writer.add(name, 0);
    Bytes bytes(writer.archive_bytes());
    writer.write_structure([&](std::uint64_t offset, std::span<const std::byte> piece) {
      std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    });
    return bytes;
  };
  test::expect_error(ErrorCode::kZipDuplicate, "entry 'archive/a' is in the directory twice", [&] {
    ZipReader(MemorySource(written({"a", "b", "a"})));
  });
  test::expect_error(ErrorCode::kZipDuplicate, "two entries are called 'archive/data.pkl'", [&] {
    ZipReader(MemorySource(written({"DATA.PKL", "data.pkl", "data/0"})));
  });
  EXPECT_NO_THROW(ZipReader(MemorySource(written({"DATA.PKL", "data/0"}))));
}

TEST(ZipDamage, dots_inside_names_are_no_harm) {
  Archive archive = by_python();
  archive.rename(1, "archive/..ty.");
  EXPECT_NE(ZipReader(MemorySource(archive.bytes)).find("archive/..ty."), nullptr);
}

// Returns whether reading the archive, and the CRC of every entry, shows that it is damaged.
bool is_reported(std::span<const std::byte> bytes) {
  try {
    const MemorySource source(bytes);
    const ZipReader reader(source);
    for (const ZipEntry& entry : reader.entries()) {
      if (entry.deflated) return true;  // not in these archives
      const auto payload = bytes.subspan(entry.data_offset, entry.compressed_bytes);
      if (crc32(0, payload) != entry.crc) return true;
    }
    return false;
  } catch (const Error&) {
    return true;
  }
}

const std::vector<std::string> kSmallArchives = {"golden/2.11.0/bare_tensor_pt/full.pt",
                                                 "golden/2.11.0/ordered_pt/full.pt",
                                                 "golden/2.11.0/parameters_pt/full.pt"};

TEST(ZipDamage, every_truncation_is_reported) {
  for (const std::string& name : kSmallArchives) {
    const Bytes bytes = test::read_data(name);
    EXPECT_FALSE(is_reported(bytes)) << name;
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_TRUE(is_reported(std::span(bytes).first(length))) << name << " cut to " << length;
    }
  }
}

TEST(ZipDamage, every_flipped_bit_is_reported) {
  for (const std::string& name : kSmallArchives) {
    Bytes bytes = test::read_data(name);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const std::byte mask{static_cast<unsigned char>(1U << (bit % 8))};
      bytes[bit / 8] ^= mask;
      EXPECT_TRUE(is_reported(bytes)) << name << " byte " << bit / 8 << " bit " << bit % 8;
      bytes[bit / 8] ^= mask;
    }
  }
}

TEST(ZipDamage, every_flipped_bit_of_the_structure_is_reported_without_crcs) {
  Bytes bytes = test::read_data("golden/2.11.0/nocrc_pt/full.pt");
  const Archive archive(bytes);
  const auto opens = [&] {
    try {
      return ZipReader(MemorySource(bytes)).without_crcs();
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(opens());
  std::size_t entry = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    while (entry < archive.data.size() && at >= archive.after[entry]) ++entry;
    if (entry < archive.data.size() && at >= archive.data[entry]) continue;
    for (unsigned bit = 0; bit < 8; ++bit) {
      const std::byte mask{static_cast<unsigned char>(1U << bit)};
      bytes[at] ^= mask;
      EXPECT_FALSE(opens()) << "byte " << at << " bit " << bit;
      bytes[at] ^= mask;
    }
  }
}

}  // namespace
}  // namespace fsdp::formats
