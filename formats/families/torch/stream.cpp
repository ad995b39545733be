// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/inflate_stream.h"
#include "formats/families/torch/torch.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// The pickle of a state dict takes some 200 bytes per tensor, so this suffices for millions.
constexpr std::uint64_t kMaxPickleBytes = 1U << 30U;
// version, byteorder and similar records have a few characters.
constexpr std::uint64_t kMaxMarkBytes = 64;
// Versions of the archive format that PyTorch has written so far.
constexpr int kMinVersion = 1;
constexpr int kMaxVersion = 10;

// Returns a pointer that does not own the source, which outlives it.
std::shared_ptr<const ByteSource> borrowed(const ByteSource& source) {
  return {&source, [](const ByteSource*) {}};
}

void check_record_crc(const ZipEntry& entry, std::uint32_t computed) {
  if (computed == entry.crc) return;
  throw Error(ErrorCode::kZipCrc,
              cat("record ", quote(entry.name), " at byte ", entry.data_offset, ": CRC-32 stored ",
                  hex32(entry.crc), ", computed ", hex32(computed)));
}

std::vector<std::byte> read_record(const ByteSource& source, const ZipEntry& entry,
                                   std::uint64_t max_bytes, bool check_crc) {
  if (entry.uncompressed_bytes > max_bytes) {
    throw Error(ErrorCode::kLimitSize,
                cat("record ", quote(entry.name), " has ", entry.uncompressed_bytes,
                    " bytes, at most ", max_bytes));
  }
  std::vector<std::byte> bytes;
  if (entry.deflated) {
    bytes.reserve(std::min<std::uint64_t>(entry.uncompressed_bytes, entry.compressed_bytes * 4));
    const SourceRange range(borrowed(source), entry.data_offset, entry.compressed_bytes);
    inflate(range, entry.uncompressed_bytes, [&](std::span<const std::byte> part) {
      bytes.insert(bytes.end(), part.begin(), part.end());
    });
  } else {
    bytes = read_bytes(source, entry.data_offset, entry.uncompressed_bytes);
  }
  if (check_crc) check_record_crc(entry, crc32(0, bytes));
  return bytes;
}

// Returns a record that is inflated while it is read, after its CRC was compared.
InflatedSource inflated_record(const ByteSource& source, const ZipEntry& entry, bool check_crc) {
  const auto compressed =
      std::make_shared<SourceRange>(borrowed(source), entry.data_offset, entry.compressed_bytes);
  std::uint32_t computed = 0;
  inflate(*compressed, entry.uncompressed_bytes,
          [&](std::span<const std::byte> part) { computed = crc32(computed, part); });
  if (check_crc) check_record_crc(entry, computed);
  return {compressed, entry.uncompressed_bytes};
}

Value read_pickle_record(const ByteSource& stream, const ZipEntry& entry, PickleHost& host) {
  return in_context([&] { return escape(entry.name); }, [&] { return read_pickle(stream, host); });
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the folder of all records, with its slash.
std::string common_prefix(const std::vector<ZipEntry>& entries) {
  if (entries.empty()) throw Error(ErrorCode::kRecordMissing, "the archive holds no record");
  const std::size_t slash = entries[0].name.find('/');
  if (slash == std::string::npos) {
    throw Error(ErrorCode::kZipName, cat("record ", quote(entries[0].name), " is not in a folder"));
  }
  std::string prefix = entries[0].name.substr(0, slash + 1);
  for (const ZipEntry& entry : entries) {
    if (!entry.name.starts_with(prefix)) {
      throw Error(ErrorCode::kZipName, cat("record ", quote(entry.name), " is outside the folder ",
                                           quote(prefix), " of the others"));
    }
  }
  return prefix;
}

void check_version(const ByteSource& source, const ZipReader& zip, const std::string& prefix,
                   bool check_crc) {
  const ZipEntry* entry = zip.find(prefix + "version");
  if (entry == nullptr) entry = zip.find(prefix + ".data/version");
  if (entry == nullptr)
    throw Error(ErrorCode::kRecordMissing,
                cat("record ", quote(prefix + "version"), " is missing"));
  const std::string text = text_of(read_record(source, *entry, kMaxMarkBytes, check_crc));
  const bool digits = !text.empty() && text.size() <= 4 &&
                      text.find_first_not_of("0123456789\n") == std::string::npos &&
                      text[0] != '\n';
  const int version = digits ? std::atoi(text.c_str()) : 0;
  if (version < kMinVersion || version > kMaxVersion) {
    throw Error(ErrorCode::kUnsupported, cat("version of the archive is ", quote(text),
                                             ", expected ", kMinVersion, " to ", kMaxVersion));
  }
}

bool read_byteorder(const ByteSource& source, const ZipReader& zip, const std::string& prefix,
                    bool check_crc) {
  const ZipEntry* entry = zip.find(prefix + "byteorder");
  if (entry == nullptr) return false;
  const std::string order = text_of(read_record(source, *entry, kMaxMarkBytes, check_crc));
  if (order != "little" && order != "big") {
    throw Error(ErrorCode::kByteorder,
                cat("byteorder is ", quote(order), ", expected 'little' or 'big'"));
  }
  return order == "big";
}

// Returns whether torch.save before PyTorch 0.1.11 wrote the tar: it has these members, each
// perhaps after an extra header for data that the first could not hold.
bool is_torch_tar(const ByteSource& tar) {
  constexpr std::uint64_t kBlock = 512;
  constexpr std::array<std::string_view, 4> kMembers = {"sys_info", "pickle", "tensors",
                                                        "storages"};
  constexpr int kHeaders = 8;  // the first member comes much earlier
  std::uint64_t at = 0;
  for (int header = 0; header < kHeaders && tar.size() >= at + kBlock; ++header) {
    std::array<char, kBlock> block{};
    tar.read_at(at, std::as_writable_bytes(std::span(block)));
    const std::string_view name(block.data(), ::strnlen(block.data(), 100));
    if (std::ranges::find(kMembers, name) != kMembers.end()) return true;
    std::uint64_t bytes = 0;  // twelve octal digits at 124
    for (std::size_t i = 124; i < 135 && block[i] >= '0' && block[i] <= '7'; ++i)
      bytes = bytes * 8 + static_cast<std::uint64_t>(block[i] - '0');
    at += kBlock + (bytes + kBlock - 1) / kBlock * kBlock;
  }
  return false;
}

}  // namespace

TorchStream sniff_torch_stream(const ByteSource& source) {
  // 0x1950A86A20F9469CFC6C as LONG1, pickled with protocol 2.
  constexpr std::array<unsigned char, 14> kLegacyMagic = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c,
                                                          0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
  constexpr std::uint64_t kTarMagicOffset = 257;
  std::array<std::byte, 14> start{};
  const auto known = static_cast<std::size_t>(std::min<std::uint64_t>(start.size(), source.size()));
  source.read_at(0, std::span(start).subspan(0, known));
  if (known >= 4 && std::memcmp(start.data(), "PK\x03\x04", 4) == 0) return TorchStream::kZip;
  if (known == start.size() && std::memcmp(start.data(), kLegacyMagic.data(), known) == 0)
    return TorchStream::kLegacy;
  if (source.size() >= kTarMagicOffset + 5) {
    std::array<std::byte, 5> magic{};
    source.read_at(kTarMagicOffset, magic);
    if (std::memcmp(magic.data(), "ustar", 5) == 0) return TorchStream::kTar;
  }
  return TorchStream::kOther;
}

namespace {

TorchFile read_archive(const ByteSource& whole, std::uint64_t archive,
                       const ZipHeaderReading& reading, bool cut) {
  switch (sniff_torch_stream(whole)) {
    case TorchStream::kLegacy:
      return read_torch_legacy(whole, archive);
    case TorchStream::kTar:
      if (!is_torch_tar(whole)) {
        throw Error(ErrorCode::kUnknownFormat,
                    "is a tar archive, not a checkpoint; unpack it and name what it contains");
      }
      throw Error(
          ErrorCode::kUnsupported,
          "this is a tar of PyTorch 0.1.10 or before; load and save it again with PyTorch 1.x");
    case TorchStream::kOther:
      if (whole.size() == 0)
        throw Error(ErrorCode::kEmpty, "has no bytes, expected a torch.save archive");
      break;  // the zip reader reports what is missing
    case TorchStream::kZip:
      break;
  }
  const EndsCache source(whole, kTorchEndBytes, kTorchEndBytes);
  const ZipReader zip(source, {}, reading);
  TorchFile file;
  if (zip.unread_headers()) file.unread = std::make_shared<UnreadHeaders>();
  file.entries = zip.entries();
  file.without_crcs = zip.without_crcs();
  const std::string prefix = common_prefix(file.entries);
  const bool check_crc = !file.without_crcs;
  if (const std::string_view program = torch_program(zip, prefix); !program.empty()) {
    throw Error(ErrorCode::kUnsupported,
                cat("this is ", program, ", a program rather than a state dict"));
  }
  const ZipEntry* pickle = zip.find(prefix + "data.pkl");
  if (pickle == nullptr)
    throw Error(ErrorCode::kRecordMissing,
                cat("record ", quote(prefix + "data.pkl"), " is missing"));
  if (!cut || zip.find(prefix + "version") != nullptr)
    check_version(source, zip, prefix, check_crc);
  file.big_endian = read_byteorder(source, zip, prefix, check_crc);

  TorchPickleHost host(archive);
  if (pickle->deflated) {
    const InflatedSource stream = inflated_record(source, *pickle, check_crc);
    file.root = read_pickle_record(stream, *pickle, host);
    file.unknown_globals = unknown_globals_in(stream);
  } else {
    const auto bytes = read_record(source, *pickle, kMaxPickleBytes, check_crc);
    const MemorySource stream(bytes);
    file.root = read_pickle_record(stream, *pickle, host);
    file.unknown_globals = unknown_globals_in(stream);
  }
  file.cyclic = host.cyclic();
  file.storages = host.storages();
  for (const StorageRef& storage : file.storages) {
    const ZipEntry* entry = zip.find(prefix + "data/" + storage.key);
    if (entry == nullptr && cut) continue;
    if (entry == nullptr) {
      throw Error(ErrorCode::kRecordMissing,
                  cat("record ", quote(prefix + "data/" + storage.key), " is missing"));
    }
    const std::uint64_t expected =
        checked_mul(storage.numel, item_bytes(storage.dtype), "storage size");
    if (entry->uncompressed_bytes != expected) {
      throw Error(ErrorCode::kRecordSize,
                  cat("record ", quote(entry->name), " has ", entry->uncompressed_bytes,
                      " bytes, expected ", expected, " for ", storage.numel, " elements of ",
                      torch_name(storage.dtype)));
    }
    StorageRecord record{entry->data_offset, entry->uncompressed_bytes, entry->compressed_bytes,
                         entry->crc, entry->deflated};
    if (file.without_crcs) record.crc.reset();
    file.records.emplace(storage.key, record);
  }
  return file;
}

}  // namespace

TorchFile read_torch_file(const ByteSource& source, std::uint64_t archive,
                          const ZipHeaderReading& reading) {
  return read_archive(source, archive, reading, false);
}

TorchFile read_cut_torch_file(const ByteSource& source) {
  return read_archive(source, 0, {}, true);
}

ChunkData storage_data(const TorchFile& file, const StorageRef& storage, const StreamPlace& place,
                       Spill& spill) {
  const auto found = file.records.find(storage.key);
  if (found == file.records.end()) {
    throw Error(ErrorCode::kStorage, cat(place.file, ": has no storage ", quote(storage.key)));
  }
  const StorageRecord& record = found->second;
  ChunkData data;
  data.source = place.source;
  data.file = place.file;
  data.storage_offset = place.offset + record.offset;
  data.storage_bytes = record.bytes;
  data.file_offset = place.file_offset + record.offset;
  data.crc = record.crc;
  data.dtype = storage.dtype;
  data.swap_bytes = file.big_endian;
  if (record.deflated) {
    const auto range = spill.get(place.file, data.file_offset, [&](const ByteSink& sink) {
      inflate(SourceRange(place.source, data.storage_offset, record.compressed_bytes), record.bytes,
              sink);
    });
    data.source = range.source;
    data.storage_offset = range.offset;
  }
  return data;
}

ChunkData tensor_data(const TorchFile& file, const TensorValue& tensor, const StreamPlace& place,
                      Spill& spill) {
  ChunkData data = storage_data(file, *tensor.storage, place, spill);
  view_storage(data, tensor);
  return data;
}

std::uint64_t check_entries(const ByteSource& source, std::span<const ZipEntry> entries,
                            std::span<std::byte> buffer, const EntryCrc& bad,
                            const EntryCrc& read) {
  std::uint64_t checked = 0;
  for (const ZipEntry& entry : entries) {
    std::uint32_t crc = 0;
    if (entry.deflated) {
      const SourceRange range(borrowed(source), entry.data_offset, entry.compressed_bytes);
      inflate(range, entry.uncompressed_bytes,
              [&](std::span<const std::byte> part) { crc = crc32(crc, part); });
    } else {
      read_parts(source, entry.data_offset, entry.uncompressed_bytes, buffer,
                 [&](std::uint64_t, std::span<const std::byte> part) { crc = crc32(crc, part); });
    }
    if (!entry.deflated && read) read(entry, crc);
    checked += entry.uncompressed_bytes;
    if (crc != entry.crc) bad(entry, crc);
  }
  return checked;
}

Finding crc_finding(const ZipEntry& entry, std::uint32_t computed, std::string file,
                    std::string key, std::uint64_t base) {
  const std::uint64_t begin = base + entry.data_offset;
  Hint hint = take_from_hint(key);
  return {.code = ErrorCode::kZipCrc,
          .message = cat("record ", quote(entry.name), " at byte ", begin, ": CRC-32 stored ",
                         hex32(entry.crc), ", computed ", hex32(computed)),
          .file = std::move(file),
          .key = std::move(key),
          .bytes = ByteRange{begin, begin + entry.compressed_bytes},
          .hint = std::move(hint)};
}

TorchFile read_torch_legacy(const ByteSource& source, std::uint64_t archive) {
  constexpr std::int64_t kProtocolVersion = 1001;
  // The pickles: magic number, protocol version, system info, object, storage keys.
  constexpr int kPickles = 5;
  TorchFile file;
  file.legacy = true;
  TorchPickleHost host(archive, true);
  std::uint64_t at = 0;
  const auto next = [&](std::string_view what) {
    return in_context(what, [&] { return read_pickle_prefix(source, at, host); });
  };
  next("magic number");
  const auto version = next("protocol version").as_int();
  if (version != kProtocolVersion) {
    throw Error(ErrorCode::kUnsupported,
                cat("protocol version is ", version.value_or(-1), ", expected ", kProtocolVersion));
  }
  const Value info = next("system info");
  const Value* little = info.find("little_endian");
  if (little != nullptr && !little->as_bool().value_or(true)) {
    throw Error(
        ErrorCode::kUnsupported,
        "written on a big-endian machine by a version that does not record the order of bytes");
  }
  file.root = next("object");
  const Value keys = next("storage keys");
  if (keys.kind() != ValueKind::kList) throw Error(ErrorCode::kType, "storage keys are not a list");
  file.storages = host.storages();
  file.unknown_globals = unknown_globals_in(source, 0, kPickles);
  file.cyclic = host.cyclic();
  std::unordered_map<std::string_view, const StorageRef*> by_key;
  for (const StorageRef& storage : file.storages) by_key.emplace(storage.key, &storage);
  for (const Value& key : keys.items()) {
    const std::string* name = key.as_string();
    const auto found = name == nullptr ? by_key.end() : by_key.find(*name);
    if (found == by_key.end()) {
      throw Error(ErrorCode::kStorage,
                  cat("storage ", name == nullptr ? "without a name" : quote(*name),
                      " is listed, but nothing refers to it"));
    }
    const StorageRef& storage = *found->second;
    const auto count = load_u64(read_bytes(source, at, 8), 0);
    if (count != storage.numel) {
      throw Error(ErrorCode::kRecordSize, cat("storage ", quote(*name), " at byte ", at, " has ",
                                              count, " elements, expected ", storage.numel));
    }
    at += 8;
    const std::uint64_t bytes =
        checked_mul(storage.numel, item_bytes(storage.dtype), "storage size");
    if (bytes > source.size() - at) {
      throw Error(ErrorCode::kTruncated,
                  cat("storage ", quote(*name), " needs ", bytes, " bytes at byte ", at,
                      ", but only ", source.size() - at, " remain"));
    }
    if (!file.records.emplace(*name, StorageRecord{at, bytes, bytes, std::nullopt, false}).second) {
      throw Error(ErrorCode::kStorage, cat("storage ", quote(*name), " is listed twice"));
    }
    at += bytes;
  }
  for (const StorageRef& storage : file.storages) {
    if (!file.records.contains(storage.key)) {
      throw Error(ErrorCode::kRecordMissing, cat("storage ", quote(storage.key), " is missing"));
    }
  }
  if (at != source.size()) {
    throw Error(ErrorCode::kTrailing,
                cat(source.size() - at, " bytes follow the last storage at byte ", at));
  }
  return file;
}

}  // namespace fsdp::formats
