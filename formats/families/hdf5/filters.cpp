// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/filters.h"

#include <algorithm>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/zip/decompress.h"

namespace fsdp::formats::hdf5 {
namespace {

constexpr std::uint64_t kModulus = 65535;
// Header and checksum around a deflate stream.
constexpr std::size_t kZlibHeaderBytes = 2;
constexpr std::size_t kZlibTrailerBytes = 4;

std::uint32_t adler32(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kPrime = 65521;
  constexpr std::size_t kBlock = 5552;  // sums of this many bytes stay below 2^32
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  while (!bytes.empty()) {
    const auto block = bytes.subspan(0, std::min(kBlock, bytes.size()));
    for (const std::byte byte : block) {
      a += static_cast<std::uint32_t>(byte);
      b += a;
    }
    a %= kPrime;
    b %= kPrime;
    bytes = bytes.subspan(block.size());
  }
  return b << 16U | a;
}

std::vector<std::byte> without_fletcher(std::vector<std::byte> bytes, std::uint64_t address) {
  if (bytes.size() < kFletcherBytes) {
    throw Error(ErrorCode::kH5Open,
                cat("chunk at byte ", address, " is too short for its checksum"));
  }
  const std::uint32_t stored = load_u32(bytes, bytes.size() - kFletcherBytes);
  bytes.resize(bytes.size() - kFletcherBytes);
  const std::uint32_t computed = fletcher32(bytes);
  if (!same_fletcher(stored, computed)) {
    throw Error(ErrorCode::kH5Checksum, cat("chunk at byte ", address, ": fletcher32 stored ",
                                            hex32(stored), ", computed ", hex32(computed)));
  }
  return bytes;
}

std::vector<std::byte> inflated(const std::vector<std::byte>& bytes, std::uint64_t expected,
                                std::uint64_t address) {
  const auto bad = [&](const char* why) {
    return Error(ErrorCode::kH5Open, cat("chunk at byte ", address, ": deflate: ", why));
  };
  if (bytes.size() < kZlibHeaderBytes + kZlibTrailerBytes) throw bad("too short");
  const auto cmf = static_cast<unsigned>(bytes[0]);
  const auto flags = static_cast<unsigned>(bytes[1]);
  if ((cmf & 0x0FU) != 8 || (cmf * 256 + flags) % 31 != 0 || (flags & 0x20U) != 0)
    throw bad("no zlib header");
  const auto body = std::span(bytes).subspan(kZlibHeaderBytes,
                                             bytes.size() - kZlibHeaderBytes - kZlibTrailerBytes);
  std::vector<std::byte> out;
  out.reserve(expected);
  inflate(MemorySource(body), expected, [&](std::span<const std::byte> part) {
    out.insert(out.end(), part.begin(), part.end());
  });
  std::uint32_t stored = 0;
  for (const std::byte byte : std::span(bytes).last(kZlibTrailerBytes))
    stored = stored << 8U | static_cast<std::uint32_t>(byte);
  const std::uint32_t computed = adler32(out);
  if (stored != computed) {
    throw Error(ErrorCode::kH5Checksum, cat("chunk at byte ", address, ": Adler-32 stored ",
                                            hex32(stored), ", computed ", hex32(computed)));
  }
  return out;
}

// Undoes shuffle: byte k of element i is at k * count + i, and bytes after the last whole element
// are at the end.
std::vector<std::byte> unshuffled(const std::vector<std::byte>& bytes, std::uint64_t item) {
  const std::uint64_t count = bytes.size() / item;
  std::vector<std::byte> out(bytes.size());
  for (std::uint64_t k = 0; k < item; ++k) {
    const std::byte* from = bytes.data() + k * count;
    for (std::uint64_t i = 0; i < count; ++i) out[i * item + k] = from[i];
  }
  std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(count * item), bytes.end(),
            out.begin() + static_cast<std::ptrdiff_t>(count * item));
  return out;
}

}  // namespace

void Fletcher32::add_word(std::uint64_t at, std::uint32_t word) {
  any_ = any_ || word != 0;
  sum_ = (sum_ + word) % kModulus;
  weighted_ = (weighted_ + word * ((words_ - at) % kModulus)) % kModulus;
}

void Fletcher32::add(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (offset % 2 != 0) {
    add_word(offset / 2, static_cast<std::uint32_t>(bytes[0]));
    bytes = bytes.subspan(1);
    ++offset;
  }
  // Whole words: each block gets sums of its own, weighted as if no words followed it.
  constexpr std::size_t kBlock = 360;  // sums of this many words fit in 32 bits
  std::uint64_t at = offset / 2;
  std::size_t left = bytes.size() / 2;
  const auto* in = reinterpret_cast<const unsigned char*>(bytes.data());
  while (left > 0) {
    const std::size_t count = std::min(left, kBlock);
    std::uint32_t sum = 0;
    std::uint32_t weighted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += static_cast<std::uint32_t>(in[2 * i]) << 8U | in[2 * i + 1];
      weighted += sum;
    }
    any_ = any_ || sum != 0;
    in += 2 * count;
    at += count;
    left -= count;
    sum_ += sum;
    weighted_ = (weighted_ + weighted + (words_ - at) % kModulus * (sum % kModulus)) % kModulus;
  }
  sum_ %= kModulus;
  if (bytes.size() % 2 != 0) add_word(at, static_cast<std::uint32_t>(bytes.back()) << 8U);
}

void Fletcher32::merge(const Fletcher32& part) {
  any_ = any_ || part.any_;
  sum_ = (sum_ + part.sum_) % kModulus;
  weighted_ = (weighted_ + part.weighted_) % kModulus;
}

std::uint32_t Fletcher32::value() const {
  const auto shown = [&](std::uint64_t sum) {
    return static_cast<std::uint32_t>(any_ && sum == 0 ? kModulus : sum);
  };
  return shown(weighted_) << 16U | shown(sum_);
}

std::uint32_t fletcher32(std::span<const std::byte> bytes) {
  Fletcher32 sum(bytes.size());
  sum.add(0, bytes);
  return sum.value();
}

bool same_fletcher(std::uint32_t stored, std::uint32_t computed) {
  const std::uint32_t swapped = (computed & 0x00FF00FFU) << 8U | (computed >> 8U & 0x00FF00FFU);
  return stored == computed || stored == swapped;
}

std::vector<std::byte> undo_filters(const Dataset& dataset, const StoredChunk& chunk,
                                    const ByteSource& file) {
  const std::uint64_t expected = dataset.chunk_bytes();
  // No combination of filters makes a chunk larger than this: deflate adds 5 bytes to each 16 KiB.
  if (chunk.bytes > expected + expected / 1024 + 64 + kFletcherBytes * dataset.filters.size()) {
    throw Error(ErrorCode::kH5Open, cat("chunk at byte ", chunk.address, " has ", chunk.bytes,
                                        " bytes, more than ", expected, " can become"));
  }
  std::vector<std::byte> bytes = read_bytes(file, chunk.address, chunk.bytes);
  for (std::size_t f = dataset.filters.size(); f-- > 0;) {
    if ((chunk.filter_mask >> f & 1U) != 0) continue;
    switch (dataset.filters[f]) {
      case Filter::kFletcher32:
        bytes = without_fletcher(std::move(bytes), chunk.address);
        break;
      case Filter::kDeflate: {
        // A checksum that was added before deflate is inside.
        std::uint64_t inside = expected;
        for (std::size_t g = 0; g < f; ++g) {
          if (dataset.filters[g] == Filter::kFletcher32 && (chunk.filter_mask >> g & 1U) == 0)
            inside += kFletcherBytes;
          if (dataset.filters[g] == Filter::kDeflate) {
            throw Error(ErrorCode::kUnsupported, "is deflated twice");
          }
        }
        bytes = inflated(bytes, inside, chunk.address);
        break;
      }
      case Filter::kShuffle:
        bytes = unshuffled(bytes, item_bytes(dataset.dtype));
        break;
    }
  }
  if (bytes.size() != expected) {
    throw Error(ErrorCode::kH5Open, cat("chunk at byte ", chunk.address, " holds ", bytes.size(),
                                        " bytes, expected ", expected));
  }
  return bytes;
}

}  // namespace fsdp::formats::hdf5
