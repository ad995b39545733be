// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/partial_reads.h"

#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// The beginning of a storage's key (storage_piece), which may stand in place of a tensor's key.
constexpr std::string_view kStorageKey = "storage ";

[[noreturn]] void malformed() {
  throw Error(ErrorCode::kJson, "another process's report of what it read is malformed");
}

// Writes a length and that many characters: names may hold anything.
void put_text(std::ostream& out, const std::string& text) {
  out << text.size() << ' ' << text << ' ';
}

std::string get_text(std::istream& in) {
  std::size_t size = 0;
  if (!(in >> size) || in.get() != ' ') malformed();
  if (in.rdbuf()->in_avail() < 0 || size > static_cast<std::size_t>(in.rdbuf()->in_avail()))
    malformed();
  std::string text(size, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) malformed();
  return text;
}

}  // namespace

void check_crc(const PartialRead& storage, std::uint32_t computed) {
  if (computed == storage.crc) return;
  // A tensor's key can be taken from another checkpoint; the keys of a storage must be found first.
  const bool key = !storage.key.starts_with(kStorageKey);
  throw Error(storage.mismatch,
              cat(storage.file, ": ", quote(storage.key, 200), ": data at byte ",
                  storage.file_offset, ": CRC-32 stored ", hex32(storage.crc), ", computed ",
                  hex32(computed), key ? "" : "; fsdp-ckpt verify names its keys"),
              key ? take_from_hint(storage.key) : Hint{});
}

std::string text_of(std::span<const PartialRead> reads) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // out of memory
  out << reads.size() << ' ';
  for (const PartialRead& read : reads) {
    put_text(out, read.file);
    put_text(out, read.key);
    const auto runs = read.ledger.runs();
    out << read.file_offset << ' ' << read.storage_bytes << ' ' << read.crc << ' '
        << static_cast<int>(read.mismatch) << ' ' << runs.size() << ' ';
    for (const auto& run : runs) out << run.begin << ' ' << run.bytes << ' ' << run.crc << ' ';
  }
  return std::move(out).str();
}

std::vector<PartialRead> partial_reads_from(const std::string& text) {
  std::istringstream in(text);
  std::size_t count = 0;
  if (!(in >> count)) malformed();
  std::vector<PartialRead> reads;
  for (std::size_t i = 0; i < count; ++i) {
    PartialRead read;
    read.file = get_text(in);
    read.key = get_text(in);
    int mismatch = 0;
    std::size_t runs = 0;
    if (!(in >> read.file_offset >> read.storage_bytes >> read.crc >> mismatch >> runs) ||
        read.storage_bytes > std::uint64_t{INT64_MAX}) {
      malformed();
    }
    read.mismatch = static_cast<ErrorCode>(mismatch);
    if (read.mismatch != ErrorCode::kZipCrc && read.mismatch != ErrorCode::kH5Checksum) malformed();
    for (std::size_t r = 0; r < runs; ++r) {
      CrcLedger::Run run{};
      if (!(in >> run.begin >> run.bytes >> run.crc) || run.begin > read.storage_bytes ||
          run.bytes > read.storage_bytes - run.begin) {
        malformed();
      }
      read.ledger.add(run.begin, run.bytes, run.crc);
    }
    reads.push_back(std::move(read));
  }
  return reads;
}

std::vector<JoinedRead> joined(std::span<const std::vector<PartialRead>> readers) {
  std::map<std::pair<std::string, std::uint64_t>, JoinedRead> storages;
  for (std::size_t reader = 0; reader < readers.size(); ++reader) {
    for (const PartialRead& read : readers[reader]) {
      const auto [at, fresh] =
          storages.try_emplace({read.file, read.file_offset}, JoinedRead{read, reader});
      if (fresh) continue;
      for (const auto& run : read.ledger.runs())
        at->second.read.ledger.add(run.begin, run.bytes, run.crc);
    }
  }
  std::vector<JoinedRead> result;
  result.reserve(storages.size());
  for (auto& [place, storage] : storages) result.push_back(std::move(storage));
  return result;
}

std::uint64_t check_together(std::span<const std::vector<PartialRead>> readers) {
  std::uint64_t unchecked = 0;
  for (const JoinedRead& storage : joined(readers)) {
    if (const auto crc = storage.read.ledger.total(storage.read.storage_bytes)) {
      check_crc(storage.read, *crc);
    } else {
      unchecked += storage.read.storage_bytes;
    }
  }
  return unchecked;
}

}  // namespace fsdp::formats
