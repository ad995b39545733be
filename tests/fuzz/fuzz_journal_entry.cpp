// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a record of a journal, and what an output keeps because of it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/journal/journal_file.h"
#include "formats/state/model/extents.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Pieces in two files, one of them empty, with a gap before the last one.
class Output {
 public:
  Output() : first_(FileDescriptor(), "first"), second_(FileDescriptor(), "second") {
    first_.set_member("a");
    second_.set_member("b");
    add(first_, 0, DType::kFloat32, 10);
    add(first_, 40, DType::kFloat32, 0);
    add(first_, 40, DType::kInt8, 30);
    add(second_, 16, DType::kFloat64, 5);
  }
  std::span<const TargetPiece> pieces() const { return pieces_; }

 private:
  void add(OutputFile& file, std::uint64_t offset, DType dtype, std::int64_t numel) {
    TargetPiece& piece = pieces_.emplace_back();
    piece.dtype = dtype;
    piece.box = whole_box(std::vector<std::int64_t>{numel});
    piece.file = &file;
    piece.offset = offset;
  }

  OutputFile first_;
  OutputFile second_;
  std::vector<TargetPiece> pieces_;
};

// What is kept and what is left tile the pieces, whatever was found.
void check_tiling(std::span<const TargetPiece> pieces, const KeptWork& kept) {
  const std::vector<PieceRange> rest = rest_of(pieces, kept.ranges);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::vector<ElementRange> ranges;
    for (const WrittenRange& range : kept.ranges) {
      if (range.piece != i) continue;
      ranges.push_back(range.range);
      bytes += range.range.count * item_bytes(pieces[i].written_dtype());
    }
    for (const PieceRange& range : rest) {
      if (range.piece == i) ranges.push_back(range.range);
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const ElementRange& a, const ElementRange& b) { return a.first < b.first; });
    std::uint64_t at = 0;
    for (const ElementRange& range : ranges) {
      require(range.first == at && range.count != 0);
      at += range.count;
    }
    require(at == volume(pieces[i].box.view()));
  }
  require(bytes == kept.bytes);
}

void fuzz_entries(std::string_view record) {
  static const Output output;
  try {
    const std::vector<JournalEntry> entries = entries_of(record);
    const std::string again = record_of(entries);
    require(record_of(entries_of(again)) == again);
    const KeptWork kept = kept_work(output.pieces(), entries);
    check_tiling(output.pieces(), kept);
    const std::vector<PartialRead> readers[] = {kept.reads};
    check_together(readers);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::kTruncated || e.code() == ErrorCode::kJson ||
            e.code() == ErrorCode::kZipCrc || e.code() == ErrorCode::kH5Checksum);
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fsdp::formats::fuzz_entries({reinterpret_cast<const char*>(data), size});
  return 0;
}
