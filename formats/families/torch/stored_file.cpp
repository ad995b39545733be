// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/stored_file.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/containers/zip/directory.h"

namespace fsdp::formats {
namespace {

// The most bytes of an archive's headers kept in memory: some hundred thousand headers.
constexpr std::uint64_t kMostHeaderBytes = 32U << 20U;

// `source`: the bytes of `file`.
void check_headers_in(const ByteSource& source, const ZipHeaderReading& reading,
                      const TorchFile& torch, const File& file) {
  try {
    const ZipReader zip(source, {}, reading);
    for (std::size_t i = 0; i < torch.entries.size(); ++i) {
      const ZipEntry& found = zip.entries().at(i);
      const ZipEntry& foretold = torch.entries[i];
      if (found.data_offset == foretold.data_offset) continue;
      throw zip_error(ErrorCode::kZipPadding, "entry ", quote(found.name),
                      " has its payload at byte ", found.data_offset, ", expected byte ",
                      foretold.data_offset, " by the directory");
    }
  } catch (const Error& error) {
    throw error.in(file.name());
  }
}

}  // namespace

TorchFile read_torch_save(const File& file, std::uint64_t archive) {
  if (!file.read_by_requests() || sniff_torch_stream(file) != TorchStream::kZip)
    return read_torch_file(file, archive);
  return read_torch_file(file, archive, {.later = true});
}

void check_headers(const TorchFile& torch, const File& file) {
  if (!torch.unread) return;
  const std::lock_guard lock(torch.unread->mutex);
  if (torch.unread->checked) return;
  const auto ahead = [&](std::uint64_t offset, std::uint64_t bytes) {
    return file.read_ahead(offset, bytes);
  };
  check_headers_in(file, {.ahead = ahead}, torch, file);
  torch.unread->checked = true;
}

CheckResult check_entry(const File& file, const ZipEntry& entry, std::span<std::byte> buffer,
                        const std::string& name, const std::string& key, FileCrcs* crcs) {
  CheckResult result;
  const auto bad = [&](const ZipEntry&, std::uint32_t computed) {
    result.findings.push_back(crc_finding(entry, computed, name, key));
  };
  const auto note = [&](const ZipEntry&, std::uint32_t computed) {
    crcs->add(file, entry.data_offset, entry.compressed_bytes, computed);
  };
  result.bytes_checked = check_entries(file, std::span(&entry, 1), buffer, bad,
                                       crcs != nullptr ? EntryCrc(note) : EntryCrc());
  return result;
}

// Reads the file, but takes bytes that are in memory from there.
class HeadersWithData::Source : public ByteSource {
 public:
  explicit Source(const HeadersWithData& headers) : headers_(headers) {
    for (const Piece& piece : headers.pieces_) {
      if (piece.read) pieces_.emplace(piece.range.begin, &piece);
    }
  }
  std::uint64_t size() const override { return headers_.file_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const Piece* const piece = piece_with(offset, out.size());
    if (piece == nullptr) return headers_.file_->read_at(offset, out);
    const auto bytes = std::span(headers_.bytes_).subspan(piece->at);
    std::ranges::copy(bytes.subspan(offset - piece->range.begin, out.size()), out.begin());
  }
  // Returns the piece that has all of these bytes; nullptr if no piece has.
  const Piece* piece_with(std::uint64_t offset, std::uint64_t count) const {
    const auto behind = pieces_.upper_bound(offset);
    if (behind == pieces_.begin()) return nullptr;
    const Piece* const piece = std::prev(behind)->second;
    return offset <= piece->range.end && count <= piece->range.end - offset ? piece : nullptr;
  }

 private:
  const HeadersWithData& headers_;
  std::map<std::uint64_t, const Piece*> pieces_;
};

HeadersWithData::HeadersWithData(const TorchFile& torch, std::shared_ptr<const File> file)
    : torch_(torch), file_(std::move(file)) {
  if (!torch.unread) return;
  {
    const std::lock_guard lock(torch.unread->mutex);
    if (torch.unread->checked) return;
  }
  std::uint64_t end = 0;    // of all data
  std::uint64_t bytes = 0;  // of all pieces
  const auto add = [&](ZipRange range) {
    pieces_.push_back({range, static_cast<std::size_t>(bytes), false});
    bytes += range.end - range.begin;
  };
  for (const ZipEntry& entry : torch.entries) {
    add(zip_header_range(entry, file_->size()));
    end = std::max(end, entry.data_offset + entry.compressed_bytes);
  }
  add({end, file_->size()});
  if (bytes > kMostHeaderBytes) {
    pieces_.clear();
    return;
  }
  bytes_.resize(static_cast<std::size_t>(bytes));
  read(torch.entries.size());
}

bool HeadersWithData::expect(std::size_t entry) const {
  const ZipEntry& data = torch_.entries[entry];
  ZipRange range{data.data_offset, data.data_offset + data.compressed_bytes};
  if (!pieces_.empty()) {
    range.begin = pieces_[entry].range.begin;
    range.end = std::max(range.end, pieces_[entry].range.end);
  }
  return file_->read_ahead(range.begin, range.end - range.begin);
}

void HeadersWithData::read(std::size_t entry) {
  if (pieces_.empty()) return;
  Piece& piece = pieces_[entry];
  file_->read_at(piece.range.begin,
                 std::span(bytes_).subspan(piece.at, piece.range.end - piece.range.begin));
  piece.read = true;
}

void HeadersWithData::check() const {
  if (pieces_.empty()) return check_headers(torch_, *file_);
  const std::lock_guard lock(torch_.unread->mutex);
  if (torch_.unread->checked) return;
  const Source source(*this);
  const auto ahead = [&](std::uint64_t offset, std::uint64_t bytes) {
    return source.piece_with(offset, bytes) != nullptr || file_->read_ahead(offset, bytes);
  };
  check_headers_in(source, {.ahead = ahead}, torch_, *file_);
  torch_.unread->checked = true;
}

}  // namespace fsdp::formats
