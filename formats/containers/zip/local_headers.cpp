// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/local_headers.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include "formats/bytes/base/byte_reader.h"

namespace fsdp::formats {
namespace {

using zip::LocalHeader;

// Bytes read beyond a local header's name, so that a header costs one small read: the extra fields
// that torch.save writes with its usual alignment of 64, zip64 included.
constexpr std::uint64_t kUsualExtraBytes = 4 + 24 + 4 + 63;
// The longest data descriptor.
constexpr std::uint64_t kDescriptorBytes = 24;

// Returns the indices of the entries in the order of their positions.
std::vector<std::size_t> order_in_file(const ZipDirectory& directory) {
  std::vector<std::size_t> order(directory.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return directory.entries[i].header_offset; });
  return order;
}

// Walks the entries in the order of their positions: each must begin where the previous one ended.
class LocalHeaders {
 public:
  LocalHeaders(const ByteSource& source, ZipDirectory& directory)
      : source_(source), directory_(directory), order_(order_in_file(directory)) {}

  std::vector<ZipLocalFacts> read(const std::function<bool(std::uint64_t, std::uint64_t)>& ahead) {
    check_overlap();
    std::vector<ZipLocalFacts> facts(order_.size());
    Before before;
    std::size_t expected = 0;
    bool memory_ahead = false;  // each header that is read makes room for another hint
    for (std::size_t at = 0; at < order_.size(); ++at) {
      bool more = memory_ahead;
      for (; ahead && expected < order_.size() && (more || expected <= at); ++expected) {
        more = expect(directory_.entries[order_[expected]], ahead);
        memory_ahead = memory_ahead || more;
      }
      const std::size_t i = order_[at];
      ZipEntry& entry = directory_.entries[i];
      check_gap(before, entry.header_offset);
      facts[i] = read_one(before.end, entry, directory_.headers[i]);
      check_descriptor(before, piece(before.end, entry.header_offset - before.end));
      const bool has_descriptor = (directory_.headers[i].common.flags & zip::kFlagDescriptor) != 0;
      before = {&entry, entry.data_offset + entry.compressed_bytes, has_descriptor};
    }
    check_gap(before, directory_.offset);
    read_piece(before.end, directory_.offset - before.end);
    check_descriptor(before, piece_);
    return facts;
  }

 private:
  // The position of the walk.
  struct Before {
    const ZipEntry* entry = nullptr;  // the last one read
    std::uint64_t end = 0;            // end of its payload
    bool has_descriptor = false;
  };

  // Checks sizes only, before any local header is read, so that an entry that points at another one
  // is reported as an overlap, not as a mismatch of names.
  void check_overlap() const {
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const ZipEntry& first = directory_.entries[order_[i - 1]];
      const ZipEntry& second = directory_.entries[order_[i]];
      const std::uint64_t end =
          first.header_offset + LocalHeader::kBytes + first.name.size() + first.compressed_bytes;
      if (end <= second.header_offset) continue;
      throw zip_error(ErrorCode::kZipOverlap, "entry ", quote(first.name), " at byte ",
                      first.header_offset, " goes on to byte ", end, " at least, but entry ",
                      quote(second.name), " begins at byte ", second.header_offset);
    }
  }

  // Hint: the header is read, with the descriptor that may precede it.
  bool expect(const ZipEntry& entry,
              const std::function<bool(std::uint64_t, std::uint64_t)>& ahead) const {
    const ZipRange range = zip_header_range(entry, directory_.offset);
    return ahead(range.begin, range.end - range.begin);
  }

  // Only a data descriptor can lie between a payload and the next header or the directory.
  static void check_gap(const Before& before, std::uint64_t next) {
    if (before.entry == nullptr) {
      if (next == 0) return;
      throw zip_error(ErrorCode::kZipFraming, "the first entry begins at byte ", next,
                      ", expected 0");
    }
    if (before.end > next) {
      throw zip_error(ErrorCode::kZipOverlap, "entry ", quote(before.entry->name), " ends at byte ",
                      before.end, ", but the next one begins at byte ", next);
    }
    const std::uint64_t gap = next - before.end;
    if (before.has_descriptor ? gap == 12 || gap == 16 || gap == 20 || gap == 24 : gap == 0) return;
    throw zip_error(
        ErrorCode::kZipExtent, "entry ", quote(before.entry->name), " ends at byte ", before.end,
        ", but what follows it begins at byte ", next, ", expected ",
        before.has_descriptor ? "a data descriptor of 16 or 24 bytes between" : "nothing between");
  }

  static void check_descriptor(const Before& before, std::span<const std::byte> bytes) {
    if (!before.has_descriptor) return;
    const ZipEntry& entry = *before.entry;
    const auto fail = [&](auto... args) {
      return zip_error(ErrorCode::kZipMismatch, "the data descriptor of entry ", quote(entry.name),
                       " ", args...);
    };
    const auto descriptor = zip::decode_descriptor(bytes);
    if (!descriptor) throw fail("does not begin with its signature");
    const auto check = [&](std::string_view field, std::uint64_t found, std::uint64_t expected) {
      if (found != expected) throw fail("says ", field, " ", found, ", the directory ", expected);
    };
    check("crc", descriptor->crc, entry.crc);
    check("compressed_bytes", descriptor->compressed_bytes, entry.compressed_bytes);
    check("uncompressed_bytes", descriptor->uncompressed_bytes, entry.uncompressed_bytes);
  }

  // Reads the local header of `entry`, together with the descriptor that may begin at `begin`.
  ZipLocalFacts read_one(std::uint64_t begin, ZipEntry& entry, const zip::CentralHeader& central) {
    const std::uint64_t name_offset = entry.header_offset + LocalHeader::kBytes;
    // read_zip_directory has checked that the directory begins after name and payload.
    const std::uint64_t extra_offset = name_offset + entry.name.size();
    const std::uint64_t most = directory_.offset - entry.compressed_bytes;
    read_piece(begin, std::min(extra_offset + kUsualExtraBytes, most) - begin);
    const auto header = zip::decode<LocalHeader>(piece(entry.header_offset, LocalHeader::kBytes));
    if (header.signature != LocalHeader::kSignature) {
      throw zip_error(ErrorCode::kZipMismatch, "no local header at byte ", entry.header_offset,
                      ", where entry ", quote(entry.name), " should begin");
    }
    check_name(entry, header, piece(name_offset, entry.name.size()));
    entry.data_offset = extra_offset + header.common.extra_bytes;
    if (entry.data_offset > most) {
      throw zip_error(ErrorCode::kZipExtent, "entry ", quote(entry.name), " of ",
                      entry.compressed_bytes, " bytes at byte ", entry.data_offset,
                      " does not end before the directory at byte ", directory_.offset);
    }
    if (entry.data_offset > piece_offset_ + piece_.size())
      read_piece(begin, entry.data_offset - begin);
    ZipLocalFacts facts;
    facts.header = header;
    const auto zip64 = read_extra(entry, piece(extra_offset, header.common.extra_bytes), facts);
    check_fields(entry, header.common, central.common, zip64);
    return facts;
  }

  void check_name(const ZipEntry& entry, const LocalHeader& header,
                  std::span<const std::byte> bytes) const {
    const std::string_view name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (header.common.name_bytes == entry.name.size() && name == entry.name) return;
    throw zip_error(ErrorCode::kZipMismatch, "the local header at byte ", entry.header_offset,
                    " names ", quote(name.substr(0, header.common.name_bytes)), " (",
                    header.common.name_bytes, " bytes), the directory ", quote(entry.name), " (",
                    entry.name.size(), " bytes)");
  }

  // Returns the data of the zip64 field, empty if there is none.
  static std::span<const std::byte> read_extra(const ZipEntry& entry,
                                               std::span<const std::byte> bytes,
                                               ZipLocalFacts& facts) {
    const auto fail = [&](auto... args) {
      return zip_error(ErrorCode::kZipPadding, "entry ", quote(entry.name), " ", args...);
    };
    const auto fields = zip::split_extra(bytes);
    if (!fields)
      throw fail("has local extra fields that do not fill their ", bytes.size(), " bytes");
    std::span<const std::byte> zip64;
    for (const zip::ExtraField& field : *fields) {
      if (facts.padded) throw fail("has an extra field behind its padding");
      if (field.id == zip::kExtraPadding) {
        for (std::size_t at = 0; at < field.data.size(); ++at) {
          if (field.data[at] == std::byte{'Z'}) continue;
          throw fail("is padded with byte value ", std::to_integer<int>(field.data[at]),
                     " at byte ", entry.data_offset - field.data.size() + at,
                     ", expected 90 ('Z')");
        }
        facts.padded = true;
        facts.padding_bytes = static_cast<std::uint16_t>(field.data.size());
      } else if (field.id == zip::kExtraZip64) {
        if (!zip64.empty() || field.data.empty()) {
          throw zip_error(ErrorCode::kZip64, "entry ", quote(entry.name),
                          " has two zip64 fields, or an empty one, in its local header");
        }
        zip64 = field.data;
      } else {
        facts.has_other_extra = true;
      }
    }
    return zip64;
  }

  static void check_fields(const ZipEntry& entry, const zip::CommonFields& local,
                           const zip::CommonFields& central, std::span<const std::byte> zip64) {
    const auto check = [&](std::string_view field, std::uint64_t found, std::uint64_t expected) {
      if (found == expected) return;
      throw zip_error(ErrorCode::kZipMismatch, "the local header of entry ", quote(entry.name),
                      " at byte ", entry.header_offset, " says ", field, " ", found,
                      ", the directory ", expected);
    };
    check("method", local.method, central.method);
    check("flags", local.flags, central.flags);
    check("time", local.time, central.time);
    check("date", local.date, central.date);
    // A side that needs zip64 only for its own values may require a higher version than the other
    // side.
    if (local.version_needed != 45 && central.version_needed != 45)
      check("version_needed", local.version_needed, central.version_needed);
    // With a descriptor a writer may leave the CRC and the sizes 0 here.
    const bool may_be_zero = (local.flags & zip::kFlagDescriptor) != 0;
    const auto check_value = [&](std::string_view field, std::uint64_t found,
                                 std::uint64_t expected) {
      if (!may_be_zero || found != 0) check(field, found, expected);
    };
    check_value("crc", local.crc, entry.crc);

    // miniz departs from [4.5.3]: it adds the header's position if that needs zip64, and leaves 0
    // in the classic sizes and in compressed_bytes, which are unknown then.
    const bool has_sizes = zip64.size() == 16 || zip64.size() == 24;
    const bool has_offset = zip64.size() == 8 || zip64.size() == 24;
    if (!zip64.empty() && !has_sizes && !has_offset) {
      throw zip_error(ErrorCode::kZip64, "entry ", quote(entry.name), " has a zip64 field of ",
                      zip64.size(), " bytes in its local header, expected 8, 16 or 24");
    }
    if (has_sizes) {
      check_value("uncompressed_bytes", load_u64(zip64, 0), entry.uncompressed_bytes);
      check_value("compressed_bytes", load_u64(zip64, 8), entry.compressed_bytes);
    }
    if (has_offset) check("header_offset", load_u64(zip64, zip64.size() - 8), entry.header_offset);
    const auto check_size = [&](std::string_view field, std::uint32_t found,
                                std::uint64_t expected) {
      if (!has_sizes || found != zip::kInZip64) check_value(field, found, expected);
    };
    check_size("compressed_bytes", local.compressed_bytes, entry.compressed_bytes);
    check_size("uncompressed_bytes", local.uncompressed_bytes, entry.uncompressed_bytes);
  }

  void read_piece(std::uint64_t offset, std::uint64_t bytes) {
    piece_offset_ = offset;
    piece_.resize(static_cast<std::size_t>(bytes));
    source_.read_at(offset, piece_);
  }
  std::span<const std::byte> piece(std::uint64_t offset, std::uint64_t bytes) const {
    return std::span(piece_).subspan(static_cast<std::size_t>(offset - piece_offset_),
                                     static_cast<std::size_t>(bytes));
  }

  const ByteSource& source_;
  ZipDirectory& directory_;
  std::vector<std::size_t> order_;  // positions in the directory, by header_offset
  std::vector<std::byte> piece_;    // the piece read last
  std::uint64_t piece_offset_ = 0;
};

// PyTorch's alignment is a multiple of this.
constexpr std::uint64_t kPayloadAlignment = 64;
// The sizes of miniz's data descriptors, with fields of 4 or of 8 bytes.  At most one of them is
// consistent with an aligned payload before the descriptor.
constexpr std::uint64_t kNarrowDescriptor = 16;
constexpr std::uint64_t kWideDescriptor = 24;
// An extra field without its data.
constexpr std::uint64_t kExtraBytes = 4;
constexpr std::uint64_t kMostExtraBytes = 0xFFFF;

bool has_marks_of_torch(const ZipEntry& entry, const zip::CentralHeader& central,
                        bool has_other_extra) {
  const std::uint16_t flags =
      entry.uncompressed_bytes == 0 ? zip::kFlagUtf8 : zip::kFlagUtf8 | zip::kFlagDescriptor;
  return !entry.deflated && !has_other_extra && central.version_made_by == 0 &&
         central.common.version_needed == 0 && central.common.flags == flags;
}

// Returns the offset of the payload of `entry`.  `next`: where the next header or the directory
// begins.
std::optional<std::uint64_t> payload_before(std::uint64_t next, const ZipEntry& entry) {
  const std::uint64_t header = entry.header_offset + zip::LocalHeader::kBytes + entry.name.size();
  const auto payload = [&](std::uint64_t descriptor) -> std::optional<std::uint64_t> {
    const std::uint64_t behind = entry.compressed_bytes + descriptor;
    if (next < behind) return std::nullopt;
    const std::uint64_t at = next - behind;
    const bool fits = at >= header + kExtraBytes && at - header <= kMostExtraBytes;
    return fits && at % kPayloadAlignment == 0 ? std::optional(at) : std::nullopt;
  };
  if (entry.compressed_bytes == 0) return payload(0);
  const auto narrow = payload(kNarrowDescriptor);
  return narrow ? narrow : payload(kWideDescriptor);
}

}  // namespace

ZipRange zip_header_range(const ZipEntry& entry, std::uint64_t end) {
  const std::uint64_t begin =
      entry.header_offset - std::min<std::uint64_t>(entry.header_offset, kDescriptorBytes);
  return {begin, std::min(end, entry.header_offset + LocalHeader::kBytes + entry.name.size() +
                                   kUsualExtraBytes)};
}

std::vector<ZipLocalFacts> read_zip_local_headers(
    const ByteSource& source, ZipDirectory& directory,
    const std::function<bool(std::uint64_t, std::uint64_t)>& ahead) {
  return LocalHeaders(source, directory).read(ahead);
}

bool foretell_payloads(ZipDirectory& directory) {
  const std::vector<std::size_t> order = order_in_file(directory);
  std::uint64_t next = directory.offset;
  for (std::size_t at = order.size(); at-- > 0;) {
    const std::size_t i = order[at];
    ZipEntry& entry = directory.entries[i];
    if (!has_marks_of_torch(entry, directory.headers[i], directory.has_other_extra[i]))
      return false;
    const auto payload = payload_before(next, entry);
    if (!payload) return false;
    entry.data_offset = *payload;
    next = entry.header_offset;
  }
  return next == 0;
}

}  // namespace fsdp::formats
