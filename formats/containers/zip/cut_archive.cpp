// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/cut_archive.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/records.h"
#include "formats/containers/zip/writer.h"

namespace fsdp::formats {
namespace {

using zip::DataDescriptor;
using zip::LocalHeader;

constexpr std::size_t kSearchBytes = 1U << 20U;
constexpr std::size_t kSignatureBytes = 4;
constexpr std::array<std::size_t, 2> kDescriptorSizes = {16, 24};

// The payload of a record, as its descriptor has it.
struct Payload {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t end = 0;  // of the descriptor
};

// Looks for the descriptor behind a payload that begins at `begin`.
class DescriptorSearch {
 public:
  DescriptorSearch(const ByteSource& source, std::uint64_t begin)
      : source_(source), begin_(begin), summed_(begin), buffer_(kSearchBytes) {}

  std::optional<Payload> run() {
    constexpr std::array<char, kSignatureBytes> kSignature = {'P', 'K', 7, 8};
    const std::uint64_t size = source_.size();
    std::vector<std::byte> block(kSearchBytes);
    for (std::uint64_t at = begin_; size - at >= kDescriptorSizes[0];
         at += kSearchBytes - kSignatureBytes + 1) {
      const auto part = std::span(block).first(std::min<std::uint64_t>(kSearchBytes, size - at));
      source_.read_at(at, part);
      const std::string_view text(reinterpret_cast<const char*>(part.data()), part.size());
      for (std::size_t found = 0;; ++found) {
        found = text.find(std::string_view(kSignature.data(), kSignature.size()), found);
        if (found == text.npos) break;
        if (auto payload = payload_before(at + found)) return payload;
      }
      if (part.size() < kSearchBytes) break;
    }
    return std::nullopt;
  }

 private:
  // Returns the payload if the bytes at `at` are the descriptor of all bytes before it.
  std::optional<Payload> payload_before(std::uint64_t at) {
    for (const std::size_t bytes : kDescriptorSizes) {
      if (source_.size() - at < bytes) continue;
      const auto descriptor = zip::decode_descriptor(read_bytes(source_, at, bytes));
      if (!descriptor || descriptor->uncompressed_bytes != at - begin_ ||
          descriptor->compressed_bytes != at - begin_ || descriptor->crc != crc_before(at))
        continue;
      return Payload{at - begin_, descriptor->crc, at + bytes};
    }
    return std::nullopt;
  }

  // Returns the CRC-32 of the bytes from `begin` to `at`.  Requires: `at` does not decrease.
  std::uint32_t crc_before(std::uint64_t at) {
    read_parts(source_, summed_, at - summed_, buffer_,
               [&](std::uint64_t, std::span<const std::byte> part) { crc_ = crc32(crc_, part); });
    summed_ = at;
    return crc_;
  }

  const ByteSource& source_;
  std::uint64_t begin_;
  std::uint64_t summed_;  // the end of the bytes in `crc_`
  std::uint32_t crc_ = 0;
  std::vector<std::byte> buffer_;
};

// The payloads of an archive, and everything between and behind them anew.
class RebuiltArchive : public ByteSource {
 public:
  explicit RebuiltArchive(const ByteSource& payloads) : payloads_(payloads) {}
  // Requires: pieces come in ascending order.
  void add(std::uint64_t offset, std::span<const std::byte> piece) {
    pieces_.emplace(offset, std::vector<std::byte>(piece.begin(), piece.end()));
    size_ = offset + piece.size();
  }
  std::uint64_t size() const override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size_ || out.size() > size_ - offset)
      throw Error(ErrorCode::kTruncated, cat("ends at byte ", size_));
    const std::uint64_t end = offset + out.size();
    // The last piece reaches past the payloads.
    const std::uint64_t old = std::min(end, pieces_.rbegin()->first);
    if (offset < old) payloads_.read_at(offset, out.first(old - offset));
    auto piece = pieces_.upper_bound(offset);
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->first < end; ++piece) {
      const auto& [begin, bytes] = *piece;
      const std::uint64_t first = std::max(begin, offset);
      const std::uint64_t last = std::min(begin + bytes.size(), end);
      if (first < last)
        std::memcpy(out.data() + (first - offset), bytes.data() + (first - begin), last - first);
    }
  }

 private:
  const ByteSource& payloads_;
  std::map<std::uint64_t, std::vector<std::byte>> pieces_;  // by their offsets
  std::uint64_t size_ = 0;
};

}  // namespace

std::unique_ptr<const ByteSource> with_new_directory(const ByteSource& cut) {
  std::optional<ZipWriter> writer;
  std::string prefix;
  std::uint64_t at = 0;
  while (cut.size() - at >= LocalHeader::kBytes) {
    const auto header = zip::decode<LocalHeader>(read_bytes(cut, at, LocalHeader::kBytes));
    const zip::CommonFields& common = header.common;
    const bool described = common.flags == (zip::kFlagUtf8 | zip::kFlagDescriptor);
    const std::uint64_t rest = std::uint64_t{common.name_bytes} + common.extra_bytes;
    if (header.signature != LocalHeader::kSignature || common.method != zip::kMethodStored ||
        (!described && common.flags != zip::kFlagUtf8) ||
        rest > cut.size() - at - LocalHeader::kBytes)
      break;
    const auto bytes = read_bytes(cut, at + LocalHeader::kBytes, common.name_bytes);
    const std::string name(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t slash = name.find('/');
    if (!writer && slash != name.npos) {
      prefix = name.substr(0, slash);
      writer.emplace(prefix);
    }
    if (!writer || !name.starts_with(prefix + "/")) break;
    const std::uint64_t begin = at + LocalHeader::kBytes + rest;
    Payload payload{.end = begin};
    if (described) {
      const auto found = DescriptorSearch(cut, begin).run();
      if (!found) break;
      payload = *found;
    }
    const std::size_t record = writer->add(name.substr(prefix.size() + 1), payload.bytes);
    if (writer->payload_offset(record) != begin) {
      throw Error(ErrorCode::kZipEocd,
                  cat("record ", quote(name), " begins at byte ", begin, ", torch.save puts it at ",
                      writer->payload_offset(record)));
    }
    writer->set_crc(record, payload.crc);
    at = payload.end;
  }
  if (at == 0) throw Error(ErrorCode::kZipEocd, "no record of the archive is whole");
  auto archive = std::make_unique<RebuiltArchive>(cut);
  writer->write_structure(
      [&](std::uint64_t offset, std::span<const std::byte> piece) { archive->add(offset, piece); });
  return archive;
}

}  // namespace fsdp::formats
