// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/scan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/reader.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kNoFrame = std::numeric_limits<std::uint64_t>::max();
constexpr unsigned kMinProtocol = 2;
constexpr unsigned kFirstFramedProtocol = 4;

// The slots that were put.  Picklers number slots from 0, so a count covers most of them.
class DefinedSlots {
 public:
  // Returns false if the slot is defined already.
  bool insert(std::uint64_t slot) {
    if (contains(slot)) return false;
    if (slot == dense_) {
      ++dense_;
      return true;
    }
    return others_.insert(slot);
  }
  bool contains(std::uint64_t slot) const {
    return slot < dense_ || (others_.count() != 0 && others_.contains(slot));
  }

 private:
  std::uint64_t dense_ = 0;  // all slots below it are defined
  SlotSet others_;
};

constexpr std::ptrdiff_t kMaxPlainArgument = 8;

// Returns a table: the bytes of an opcode with its argument, or with the length of a short string;
// 0 for opcodes that `step` handles.
constexpr std::array<std::uint8_t, 256> make_plain_bytes() {
  std::array<std::uint8_t, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    switch (kPickleArguments[byte]) {
      case PickleArgument::kNothing:
        table[byte] = 1;
        break;
      case PickleArgument::kByte1:
      case PickleArgument::kLength1:
        table[byte] = 2;
        break;
      case PickleArgument::kByte2:
        table[byte] = 3;
        break;
      case PickleArgument::kByte4:
        table[byte] = 5;
        break;
      case PickleArgument::kByte8:
        table[byte] = 9;
        break;
      default:
        break;
    }
  }
  for (const PickleOp op : {PickleOp::kProto, PickleOp::kFrame, PickleOp::kStop, PickleOp::kBinPut,
                            PickleOp::kLongBinPut}) {
    table[static_cast<std::uint8_t>(op)] = 0;
  }
  return table;
}
constexpr std::array<std::uint8_t, 256> kPlainBytes = make_plain_bytes();

class Scanner {
 public:
  Scanner(const ByteSource& source, std::uint64_t offset)
      : reader_(source, offset), begin_offset_(offset) {}

  PickleScan run(bool whole) {
    protocol();
    do {
      skip_plain();
    } while (step());
    const std::uint64_t end = reader_.offset();
    if (frame_end_ != kNoFrame) {
      reader_.fail(ErrorCode::kFrame,
                   cat("the pickle ends, but its frame goes on to byte ", frame_end_));
    }
    if (whole && end != reader_.source_bytes()) {
      throw Error(ErrorCode::kTrailing, reader_.source_bytes() - end,
                  " bytes follow the end of the pickle at byte ", end);
    }
    PickleScan result;
    result.end_offset = end;
    result.fetched = std::move(fetched_);
    result.fetched.make_ranks();
    return result;
  }

 private:
  void protocol() {
    if (reader_.source_bytes() == 0) throw Error(ErrorCode::kEmpty, "pickle is empty");
    if (begin_offset_ >= reader_.source_bytes()) {
      throw Error(ErrorCode::kTruncated, "no pickle begins at byte ", begin_offset_, ": only ",
                  reader_.source_bytes(), " bytes");
    }
    if (reader_.opcode() != PickleOp::kProto) {
      throw Error(ErrorCode::kProto, "pickle begins with ", reader_.opcode_hex(), " at byte ",
                  begin_offset_, ", expected PROTO (0x80) and protocol 2 to 5");
    }
    protocol_ = reader_.u8();
    if (protocol_ < kMinProtocol || protocol_ > kMaxPickleProtocol)
      reader_.fail(ErrorCode::kProto, cat("protocol ", protocol_, " is outside 2 to 5"));
  }

  // Steps over the opcodes of fixed size, short strings and fetches that lie inside the block and
  // the frame. What remains, and every error, is left to `step`.
  void skip_plain() {
    std::span<const unsigned char> bytes = reader_.in_block();
    if (frame_end_ != kNoFrame) {
      bytes = bytes.first(static_cast<std::size_t>(
          std::min<std::uint64_t>(bytes.size(), frame_end_ - reader_.offset())));
    }
    const unsigned char* at = bytes.data();
    const unsigned char* const end = at + bytes.size();
    while (end - at > kMaxPlainArgument) {
      const auto op = static_cast<PickleOp>(*at);
      std::size_t length = 1;
      if (op == PickleOp::kMemoize) {
        if (!defined_.insert(put_count_)) break;
        ++put_count_;
      } else if (op == PickleOp::kBinGet || op == PickleOp::kLongBinGet) {
        const bool is_long = op == PickleOp::kLongBinGet;
        const std::uint64_t slot = is_long ? PickleReader::little_endian_32(at + 1) : at[1];
        if (!defined_.contains(slot)) break;
        fetched_.insert(slot);
        length = is_long ? 5 : 2;
      } else {
        length = kPlainBytes[*at];
        if (length == 0) break;
        if (kPickleArguments[*at] == PickleArgument::kLength1) length += at[1];
        if (length > static_cast<std::size_t>(end - at)) break;
      }
      at += length;
    }
    reader_.advance(static_cast<std::size_t>(at - bytes.data()));
    if (reader_.offset() == frame_end_) frame_end_ = kNoFrame;
  }

  // Scans one opcode with its argument; returns false after STOP.
  bool step() {
    const PickleOp op = reader_.opcode();
    switch (op) {
      case PickleOp::kProto:
        reader_.fail(ErrorCode::kProto, "PROTO is allowed only at the beginning");
      case PickleOp::kFrame:
        frame();
        return true;
      case PickleOp::kBinPut:
        put(reader_.u8());
        break;
      case PickleOp::kLongBinPut:
        put(reader_.u32());
        break;
      case PickleOp::kMemoize:
        put(put_count_);
        break;
      case PickleOp::kBinGet:
        get(reader_.u8());
        break;
      case PickleOp::kLongBinGet:
        get(reader_.u32());
        break;
      default:
        reader_.skip_argument();
        break;
    }
    if (reader_.offset() >= frame_end_) {
      if (reader_.offset() > frame_end_)
        reader_.fail(ErrorCode::kFrame, cat("crosses the end of its frame at byte ", frame_end_));
      frame_end_ = kNoFrame;
    }
    return op != PickleOp::kStop;
  }

  void frame() {
    const std::uint64_t length = reader_.u64();
    if (protocol_ < kFirstFramedProtocol)
      reader_.fail(ErrorCode::kFrame, cat("protocol ", protocol_, " has no frames"));
    if (frame_end_ != kNoFrame) {
      reader_.fail(ErrorCode::kFrame,
                   cat("begins inside the frame that ends at byte ", frame_end_));
    }
    if (length >= kNoFrame - reader_.offset())
      reader_.fail(ErrorCode::kFrame, cat("its length ", length, " is beyond any file"));
    // A frame longer than the stream is not an error here: the stream is reported as truncated.
    if (length != 0) frame_end_ = reader_.offset() + length;
  }

  void put(std::uint64_t slot) {
    // A pickler numbers its slots from 0, so it cannot have used more slots than opcodes.
    if (slot > reader_.opcode_offset() - begin_offset_) {
      reader_.fail(ErrorCode::kMemo,
                   cat("memo slot ", slot, " is out of order: only ", put_count_, " are in use"));
    }
    if (!defined_.insert(slot))
      reader_.fail(ErrorCode::kMemo, cat("memo slot ", slot, " is in use already"));
    ++put_count_;
  }

  void get(std::uint64_t slot) {
    if (!defined_.contains(slot))
      reader_.fail(ErrorCode::kMemo, cat("memo slot ", slot, " is not defined"));
    fetched_.insert(slot);
  }

  PickleReader reader_;
  std::uint64_t begin_offset_;
  unsigned protocol_ = 0;
  std::uint64_t frame_end_ = kNoFrame;
  std::uint64_t put_count_ = 0;
  DefinedSlots defined_;
  SlotSet fetched_;
};

}  // namespace

PickleScan scan_pickle(const ByteSource& source, std::uint64_t offset, bool whole) {
  return Scanner(source, offset).run(whole);
}

}  // namespace fsdp::formats
