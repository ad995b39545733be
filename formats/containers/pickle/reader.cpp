// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20U;
// Names of modules and classes are far shorter.  The limit stops the search for the end of a line
// in a stream without newlines.
constexpr std::size_t kMaxLineBytes = 4096;

}  // namespace

PickleReader::PickleReader(const ByteSource& source, std::uint64_t offset)
    : source_(source),
      source_bytes_(source.size()),
      block_(std::make_unique_for_overwrite<unsigned char[]>(static_cast<std::size_t>(
          std::min<std::uint64_t>(kBlockBytes, source_bytes_ - std::min(offset, source_bytes_))))),
      block_offset_(offset),
      at_(block_.get()),
      end_(block_.get()) {}

void PickleReader::remember_opcode() {
  if (opcode_at_ == nullptr) return;
  opcode_offset_ = opcode_offset();
  opcode_ = *opcode_at_;
  opcode_at_ = nullptr;
}

bool PickleReader::fill(std::size_t count) {
  const std::uint64_t from = offset();
  if (from > source_bytes_ || source_bytes_ - from < count) return false;
  throw_if_interrupted();
  remember_opcode();
  const auto kept = static_cast<std::size_t>(end_ - at_);
  std::memmove(block_.get(), at_, kept);
  block_offset_ = from;
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, source_bytes_ - from));
  source_.read_at(from + kept, std::as_writable_bytes(std::span(block_.get() + kept, size - kept)));
  charge_pickle(size - kept);
  at_ = block_.get();
  end_ = block_.get() + size;
  return true;
}

std::string_view PickleReader::bytes_across_blocks(std::uint64_t count) {
  if (count > source_bytes_ - offset()) throw_short(count);
  if (count <= kBlockBytes) {
    fill(static_cast<std::size_t>(count));
    return bytes(count);
  }
  const auto kept = static_cast<std::size_t>(end_ - at_);
  long_bytes_.resize(static_cast<std::size_t>(count));
  std::memcpy(long_bytes_.data(), at_, kept);
  at_ = end_;
  source_.read_at(offset(), std::as_writable_bytes(std::span(long_bytes_)).subspan(kept));
  skip(count - kept);
  return long_bytes_;
}

void PickleReader::skip_across_blocks(std::uint64_t count) {
  const std::uint64_t from = offset();
  if (count > source_bytes_ - from) throw_short(count);
  remember_opcode();
  block_offset_ = from + count;
  at_ = block_.get();
  end_ = block_.get();
}

void PickleReader::skip_argument() {
  const PickleArgument argument = kPickleArguments[opcode_byte()];
  if (argument == PickleArgument::kRefused) refuse();
  skip(argument, false);
}

void PickleReader::skip(PickleArgument argument, bool long_lines) {
  const auto skip_text = [&] { long_lines ? skip_line() : static_cast<void>(line()); };
  switch (argument) {
    case PickleArgument::kRefused:
    case PickleArgument::kNothing:
      return;
    case PickleArgument::kByte1:
      return skip(1);
    case PickleArgument::kByte2:
      return skip(2);
    case PickleArgument::kByte4:
      return skip(4);
    case PickleArgument::kByte8:
      return skip(8);
    case PickleArgument::kLength1:
      return skip(u8());
    case PickleArgument::kLength4:
      return skip(u32());
    case PickleArgument::kLength8:
      return skip(u64());
    case PickleArgument::kSignedLength4:
      return skip(signed_length());
    case PickleArgument::kTwoLines:
      skip_text();
      [[fallthrough]];
    case PickleArgument::kLine:
      return skip_text();
  }
}

std::string_view PickleReader::line() {
  if (static_cast<std::size_t>(end_ - at_) <= kMaxLineBytes) {
    fill(static_cast<std::size_t>(
        std::min<std::uint64_t>(kMaxLineBytes + 1, source_bytes_ - offset())));
  }
  const auto available = std::min(static_cast<std::size_t>(end_ - at_), kMaxLineBytes + 1);
  const void* const newline = std::memchr(at_, '\n', available);
  if (newline == nullptr) {
    if (available <= kMaxLineBytes) {
      fail(ErrorCode::kTruncated,
           cat("the name at byte ", offset(), " has no end before the stream ends"));
    }
    fail(ErrorCode::kGlobal,
         cat("the name at byte ", offset(), " is longer than ", kMaxLineBytes, " bytes"));
  }
  const auto length = static_cast<std::size_t>(static_cast<const unsigned char*>(newline) - at_);
  const std::string_view text(reinterpret_cast<const char*>(at_), length);
  at_ += length + 1;
  return text;
}

void PickleReader::skip_line() {
  for (;;) {
    if (at_ == end_ && !fill(1))
      fail(ErrorCode::kTruncated, "its line has no end before the stream ends");
    const void* const newline = std::memchr(at_, '\n', static_cast<std::size_t>(end_ - at_));
    if (newline != nullptr) {
      at_ = static_cast<const unsigned char*>(newline) + 1;
      return;
    }
    at_ = end_;
  }
}

std::uint32_t PickleReader::signed_length() {
  const std::uint32_t length = u32();
  if (length > static_cast<std::uint32_t>(INT32_MAX))
    fail(ErrorCode::kIntRange, cat("its length is negative: ", static_cast<std::int32_t>(length)));
  return length;
}

std::string PickleReader::where() const {
  return cat(kPickleOpcodes[opcode_byte()].name, " at byte ", opcode_offset());
}

void PickleReader::fail(ErrorCode code, std::string_view symptom) const {
  throw Error(code, where(), ": ", symptom);
}

void PickleReader::throw_short(std::uint64_t count) const {
  fail(ErrorCode::kTruncated, cat("needs ", count, " bytes at byte ", offset(), ", but only ",
                                  source_bytes_ - std::min(offset(), source_bytes_), " remain"));
}

void PickleReader::throw_without_stop() const {
  throw Error(ErrorCode::kTruncated, "pickle ends at byte ", offset(), " without STOP");
}

std::string PickleReader::opcode_hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {'0', 'x', kDigits[opcode_byte() >> 4U], kDigits[opcode_byte() & 15U]};
}

void PickleReader::refuse() const {
  const std::string_view name = kPickleOpcodes[opcode_byte()].name;
  if (name.empty()) {
    throw Error(ErrorCode::kOpcode, opcode_hex(), " at byte ", opcode_offset(),
                " is not a pickle opcode");
  }
  throw Error(ErrorCode::kOpcode, "opcode ", name, " (", opcode_hex(), ") at byte ",
              opcode_offset(), " is not accepted; no pickler writes it for data");
}

}  // namespace fsdp::formats
