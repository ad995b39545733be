// SPDX-License-Identifier: Apache-2.0
// A cursor over a pickle stream that reads its source in blocks and tracks the current opcode.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/opcodes.h"

namespace fsdp::formats {

// Lengths are compared with what remains of the source before anything is allocated or read.
// Lifetime: the source outlives the reader.
class PickleReader {
 public:
  PickleReader(const ByteSource& source, std::uint64_t offset);

  // Reads the next opcode byte, which need not be an accepted one.  Throws: kTruncated if there is
  // none.
  PickleOp opcode() {
    if (at_ == end_ && !fill(1)) throw_without_stop();
    opcode_at_ = at_;
    return static_cast<PickleOp>(*at_++);
  }
  // Throws kOpcode about the current opcode.
  [[noreturn]] void refuse() const;

  // Little-endian arguments.  Throws: kTruncated.
  std::uint8_t u8() { return *take(1); }
  std::uint16_t u16() {
    const unsigned char* const b = take(2);
    return static_cast<std::uint16_t>(b[0] | b[1] << 8U);
  }
  std::uint32_t u32() { return little_endian_32(take(4)); }
  std::uint64_t u64() {
    const unsigned char* const b = take(8);
    return little_endian_32(b) | std::uint64_t{little_endian_32(b + 4)} << 32U;
  }
  // Reads a length written as a signed number.  Throws: kIntRange if it is negative, kTruncated.
  std::uint32_t signed_length();

  // Reads the bytes of an argument, valid until the next call.  Throws: kTruncated.
  std::string_view bytes(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(end_ - at_)) return bytes_across_blocks(count);
    const std::string_view text(reinterpret_cast<const char*>(at_),
                                static_cast<std::size_t>(count));
    at_ += count;
    return text;
  }
  void skip(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(end_ - at_)) return skip_across_blocks(count);
    at_ += count;
  }
  // Steps over the argument of the current opcode.  Throws: kOpcode if the opcode is refused,
  // kTruncated, kIntRange, kGlobal (a line without end).
  void skip_argument();
  // Steps over an argument of that shape, if there is one.  `long_lines`: lines may be longer than
  // any name.
  void skip(PickleArgument argument, bool long_lines);
  // Reads the text up to the next '\n', which is skipped.  Valid until the next call.
  // Throws: kTruncated; kGlobal if a line is longer than any name.
  std::string_view line();
  // Skips a line of any length.  Throws: kTruncated.
  void skip_line();

  // Written so that compilers turn it into one load.
  static std::uint32_t little_endian_32(const unsigned char* b) {
    return b[0] | std::uint32_t{b[1]} << 8U | std::uint32_t{b[2]} << 16U |
           std::uint32_t{b[3]} << 24U;
  }

  std::uint64_t offset() const {
    return block_offset_ + static_cast<std::uint64_t>(at_ - block_.get());
  }
  std::uint64_t opcode_offset() const {
    if (opcode_at_ == nullptr) return opcode_offset_;
    return block_offset_ + static_cast<std::uint64_t>(opcode_at_ - block_.get());
  }
  std::uint64_t source_bytes() const { return source_bytes_; }
  // Return the bytes of the block from the cursor on, and move the cursor within the block.
  // Requires: count is at most their number.
  std::span<const unsigned char> in_block() const { return {at_, end_}; }
  void advance(std::size_t count) { at_ += count; }

  // The current opcode: "0x68".
  std::string opcode_hex() const;
  // "BINGET at byte 31".
  std::string where() const;
  // Throws an error about the current opcode: "BINGET at byte 31: <symptom>".
  [[noreturn]] void fail(ErrorCode code, std::string_view symptom) const;

 private:
  const unsigned char* take(std::size_t count) {
    if (static_cast<std::size_t>(end_ - at_) < count && !fill(count)) throw_short(count);
    const unsigned char* const bytes = at_;
    at_ += count;
    return bytes;
  }
  // Reads on until at least `count` bytes are at the cursor; returns false if the source ends
  // before.  Requires: count is at most a block.
  bool fill(std::size_t count);
  std::string_view bytes_across_blocks(std::uint64_t count);
  void skip_across_blocks(std::uint64_t count);
  [[noreturn]] void throw_short(std::uint64_t count) const;
  [[noreturn]] void throw_without_stop() const;
  // Remembers the current opcode while the block is replaced.
  void remember_opcode();
  std::uint8_t opcode_byte() const { return opcode_at_ == nullptr ? opcode_ : *opcode_at_; }

  const ByteSource& source_;
  std::uint64_t source_bytes_;
  std::unique_ptr<unsigned char[]> block_;
  std::uint64_t block_offset_;  // of the first byte of the block, in the source
  const unsigned char* at_;
  const unsigned char* end_;
  const unsigned char* opcode_at_ = nullptr;  // in the block; nullptr: use opcode_
  std::uint64_t opcode_offset_ = 0;
  std::uint8_t opcode_ = 0;
  std::string long_bytes_;  // the result of `bytes` if it is not inside one block
};

}  // namespace fsdp::formats
