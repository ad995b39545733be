// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/chunk_data.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "formats/bytes/base/crc32.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// The bytes of each of two compared chunks that are read at a time.
constexpr std::uint64_t kComparedBytes = 4U << 20U;

// A span that is read whole although only part of it is needed must hold at least one needed byte
// in this many, unless the span is small.
constexpr std::uint64_t kMaxReadAmplification = 8;
// Up to this size one read of a span is cheaper than several.
constexpr std::uint64_t kSmallSpanBytes = 65536;

// The bytes that are read and moved at a time.  They stay in a core's second-level cache, unless
// that is too few rows for long writes.
constexpr std::uint64_t kCachedBytes = 512U << 10U;
constexpr std::uint64_t kLeastRows = 32;

// A block of elements to move: sizes, and strides on both sides, in elements.
struct Block {
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> from_stride;
  std::vector<std::int64_t> to_stride;
};

// Drops dimensions of one element and joins neighbours that are dense on both sides.
Block simplified(const Block& block) {
  Block out;
  for (std::size_t d = 0; d < block.size.size(); ++d) {
    if (block.size[d] == 1) continue;
    if (!out.size.empty() && out.from_stride.back() == block.from_stride[d] * block.size[d] &&
        out.to_stride.back() == block.to_stride[d] * block.size[d]) {
      out.size.back() *= block.size[d];
      out.from_stride.back() = block.from_stride[d];
      out.to_stride.back() = block.to_stride[d];
    } else {
      out.size.push_back(block.size[d]);
      out.from_stride.push_back(block.from_stride[d]);
      out.to_stride.push_back(block.to_stride[d]);
    }
  }
  return out;
}

// Two dimensions of elements that lie apart on at least one side, in bytes.
struct Plane {
  std::size_t size[2];
  std::size_t from_step[2];
  std::size_t to_step[2];
};

// Rows and columns that are moved at a time: the cache lines of both sides stay in the first cache.
constexpr std::size_t kTile = 32;
// The same where elements go through a buffer: at least two cache lines of each row.
template <std::size_t kItem>
constexpr std::size_t kTurnedTile = std::max<std::size_t>(16,
                                                          std::min<std::size_t>(64, 128 / kItem));

// Moves elements that lie side by side along dimension `row` in the source, and along the other one
// in the target.  They go through a buffer, so that each row of a tile is read and written at once:
// rows whose distance is a power of two share few places in the caches, and would be evicted
// between one element and the next.
template <std::size_t kItem>
void turn_plane(const Plane& plane, std::size_t row, const std::byte* from, std::byte* to) {
  constexpr std::size_t kSide = kTurnedTile<kItem>;
  const std::size_t column = 1 - row;
  alignas(64) std::array<std::byte, kSide * kSide * kItem> tile;
  for (std::size_t left = 0; left < plane.size[row]; left += kSide) {
    const std::size_t columns = std::min(kSide, plane.size[row] - left);
    for (std::size_t top = 0; top < plane.size[column]; top += kSide) {
      const std::size_t rows = std::min(kSide, plane.size[column] - top);
      for (std::size_t i = 0; i < rows; ++i) {
        std::memcpy(tile.data() + i * kSide * kItem,
                    from + (top + i) * plane.from_step[column] + left * kItem, columns * kItem);
      }
      for (std::size_t j = 0; j < columns; ++j) {
        std::byte* const target = to + (left + j) * plane.to_step[row] + top * kItem;
        for (std::size_t i = 0; i < rows; ++i)
          std::memcpy(target + i * kItem, tile.data() + (i * kSide + j) * kItem, kItem);
      }
    }
  }
}

template <std::size_t kItem>
void move_plane(const Plane& plane, const std::byte* from, std::byte* to) {
  for (const std::size_t row : {std::size_t{0}, std::size_t{1}}) {
    if (plane.from_step[row] == kItem && plane.to_step[1 - row] == kItem)
      return turn_plane<kItem>(plane, row, from, to);
  }
  for (std::size_t top = 0; top < plane.size[0]; top += kTile) {
    const std::size_t bottom = std::min(top + kTile, plane.size[0]);
    for (std::size_t left = 0; left < plane.size[1]; left += kTile) {
      const std::size_t right = std::min(left + kTile, plane.size[1]);
      for (std::size_t i = top; i < bottom; ++i) {
        const std::byte* source = from + i * plane.from_step[0] + left * plane.from_step[1];
        std::byte* target = to + i * plane.to_step[0] + left * plane.to_step[1];
        for (std::size_t j = left; j < right; ++j) {
          std::memcpy(target, source, kItem);
          source += plane.from_step[1];
          target += plane.to_step[1];
        }
      }
    }
  }
}

void move_plane(const Plane& plane, const std::byte* from, std::byte* to, std::size_t item) {
  switch (item) {
    case 1:
      return move_plane<1>(plane, from, to);
    case 2:
      return move_plane<2>(plane, from, to);
    case 4:
      return move_plane<4>(plane, from, to);
    case 8:
      return move_plane<8>(plane, from, to);
    default:
      return move_plane<16>(plane, from, to);
  }
}

void move_block(const Block& block, std::size_t dim, const std::byte* from, std::byte* to,
                std::size_t item) {
  const std::size_t left = block.size.size() - dim;
  if (left == 0) {
    std::memcpy(to, from, item);
    return;
  }
  const auto count = static_cast<std::size_t>(block.size[dim]);
  const auto from_step = static_cast<std::size_t>(block.from_stride[dim]) * item;
  const auto to_step = static_cast<std::size_t>(block.to_stride[dim]) * item;
  const bool dense = block.from_stride.back() == 1 && block.to_stride.back() == 1;
  if (left == 1 && dense) {
    std::memcpy(to, from, count * item);
    return;
  }
  if (left == 1) {
    move_plane({{1, count}, {0, from_step}, {0, to_step}}, from, to, item);
    return;
  }
  if (left == 2 && !dense) {
    move_plane({{count, static_cast<std::size_t>(block.size[dim + 1])},
                {from_step, static_cast<std::size_t>(block.from_stride[dim + 1]) * item},
                {to_step, static_cast<std::size_t>(block.to_stride[dim + 1]) * item}},
               from, to, item);
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    move_block(block, dim + 1, from + i * from_step, to + i * to_step, item);
}

std::uint64_t product(std::span<const std::int64_t> sizes) {
  std::uint64_t result = 1;
  for (const std::int64_t size : sizes) result *= static_cast<std::uint64_t>(size);
  return result;
}

class Gatherer {
 public:
  Gatherer(const ChunkData& data, std::span<std::byte> out, std::span<std::byte> scratch)
      : data_(data), item_(item_bytes(data.dtype)), out_(out), scratch_(scratch) {}

  // `from` and `to` are positions of elements in the storage and in `out`.
  void run(const Block& block, std::uint64_t from, std::uint64_t to) {
    std::uint64_t span = 1;
    for (std::size_t d = 0; d < block.size.size(); ++d) {
      span += static_cast<std::uint64_t>(block.size[d] - 1) *
              static_cast<std::uint64_t>(block.from_stride[d]);
    }
    const std::uint64_t wanted = product(block.size) * item_;
    const std::uint64_t bytes = span * item_;
    const bool dense_target =
        block.size.empty() || (block.size.size() == 1 && block.to_stride[0] == 1);
    if (bytes == wanted && dense_target && (block.size.empty() || block.from_stride[0] == 1)) {
      read(from, out_.subspan(to * item_, bytes));
      return;
    }
    const bool worth_it = bytes <= kSmallSpanBytes || bytes / kMaxReadAmplification <= wanted;
    const bool small = bytes <= kCachedBytes ||
                       static_cast<std::uint64_t>(block.size[widest(block)]) < 2 * kLeastRows;
    if (bytes <= scratch_.size() && worth_it && small) {
      const auto buffer = scratch_.subspan(0, bytes);
      read(from, buffer);
      move_block(block, 0, buffer.data(), out_.data() + to * item_, item_);
      return;
    }
    split(block, from, to);
  }

 private:
  void read(std::uint64_t element, std::span<std::byte> out) {
    data_.source->read_at(data_.storage_offset + element * item_, out);
  }

  // Returns the dimension whose elements span the most.
  static std::size_t widest(const Block& block) {
    std::size_t dim = 0;
    for (std::size_t d = 1; d < block.size.size(); ++d) {
      if (block.from_stride[d] * block.size[d] > block.from_stride[dim] * block.size[dim]) dim = d;
    }
    return dim;
  }

  // Halves the widest dimension: the parts then lie closer together.
  void split(const Block& block, std::uint64_t from, std::uint64_t to) {
    const std::size_t dim = widest(block);
    Block low = block;
    Block high = block;
    low.size[dim] = block.size[dim] / 2;
    high.size[dim] = block.size[dim] - low.size[dim];
    const auto skipped = static_cast<std::uint64_t>(low.size[dim]);
    const std::uint64_t high_from =
        from + skipped * static_cast<std::uint64_t>(block.from_stride[dim]);
    const std::uint64_t high_to = to + skipped * static_cast<std::uint64_t>(block.to_stride[dim]);
    run(simplified(low), from, to);
    run(simplified(high), high_from, high_to);
  }

  const ChunkData& data_;
  std::uint64_t item_;
  std::span<std::byte> out_;
  std::span<std::byte> scratch_;
};

// Moves a block that is one dense run in the storage, from element `from` on, a few rows at a time.
// Returns the CRC-32 of the run.
std::uint32_t move_run(const ChunkData& data, const Block& block, std::uint64_t from,
                       std::span<std::byte> out, std::span<std::byte> scratch) {
  const std::uint64_t item = item_bytes(data.dtype);
  const auto outer = static_cast<std::size_t>(
      std::ranges::find_if(block.size, [](auto size) { return size > 1; }) - block.size.begin());
  const auto rows = outer == block.size.size() ? 1 : static_cast<std::uint64_t>(block.size[outer]);
  const std::uint64_t row_bytes = product(block.size) * item / rows;
  const std::uint64_t step =
      std::max(kLeastRows, kCachedBytes / std::max<std::uint64_t>(1, row_bytes));
  const std::uint64_t out_step =
      rows == 1 ? 0 : static_cast<std::uint64_t>(block.to_stride[outer]) * item;
  Block part = block;
  std::uint32_t crc = 0;
  for (std::uint64_t row = 0; row < rows; row += step) {
    const std::uint64_t count = std::min(step, rows - row);
    if (rows > 1) part.size[outer] = static_cast<std::int64_t>(count);
    const auto buffer = scratch.first(count * row_bytes);
    data.source->read_at(data.storage_offset + from * item + row * row_bytes, buffer);
    crc = crc32(crc, buffer);
    move_block(simplified(part), 0, buffer.data(), out.data() + row * out_step, item);
  }
  return crc;
}

void flip_sign(std::span<std::byte> elements, std::size_t step, std::size_t sign_byte) {
  for (std::size_t i = sign_byte; i < elements.size(); i += step) elements[i] ^= std::byte{0x80};
}

}  // namespace

void transform_elements(const ChunkData& data, std::span<std::byte> elements) {
  const auto item = static_cast<std::size_t>(item_bytes(data.dtype));
  const auto unit = static_cast<std::size_t>(swap_unit_bytes(data.dtype));
  if (data.swap_bytes && unit > 1) {
    for (std::size_t at = 0; at + unit <= elements.size(); at += unit) {
      std::reverse(elements.begin() + static_cast<std::ptrdiff_t>(at),
                   elements.begin() + static_cast<std::ptrdiff_t>(at + unit));
    }
  }
  // Little-endian IEEE numbers: the sign is the top bit of the last byte; each half of a complex
  // number has one.
  if (data.conjugate) flip_sign(elements, item, item - 1);
  if (data.negate) flip_sign(elements, unit, unit - 1);
}

std::optional<DenseRun> gather(const ChunkData& data, std::span<const std::int64_t> chunk_size,
                               std::span<const std::int64_t> begin,
                               std::span<const std::int64_t> size, std::span<std::byte> out,
                               std::span<const std::int64_t> out_strides,
                               std::span<std::byte> scratch) {
  const std::vector<std::int64_t> strides =
      data.strides.empty() ? row_major_strides(chunk_size) : data.strides;
  const std::uint64_t item = item_bytes(data.dtype);
  std::uint64_t from = data.first;
  for (std::size_t d = 0; d < begin.size(); ++d)
    from += static_cast<std::uint64_t>(begin[d]) * static_cast<std::uint64_t>(strides[d]);
  Block block{{size.begin(), size.end()}, strides, {out_strides.begin(), out_strides.end()}};
  // One dense run in row-major order of the sub-box, small enough to be kept: its CRC costs no
  // extra pass.
  const std::vector<std::int64_t> dense = row_major_strides(size);
  bool contiguous = true;
  for (std::size_t d = 0; d < size.size(); ++d)
    contiguous = contiguous && (size[d] == 1 || strides[d] == dense[d]);
  const std::uint64_t bytes = product(size) * item;
  if (contiguous && bytes <= scratch.size())
    return DenseRun{from * item, bytes, move_run(data, block, from, out, scratch)};
  Gatherer(data, out, scratch).run(simplified(block), from, 0);
  return std::nullopt;
}

namespace {

using PartTest =
    std::function<bool(std::span<const std::int64_t> begin, std::span<const std::int64_t> size)>;

// Returns whether `test` holds for all parts of a box, of at most `most` elements each.
bool all_parts(std::span<const std::int64_t> size, std::uint64_t most, const PartTest& test) {
  std::vector<std::int64_t> begin(size.size(), 0);
  std::vector<std::int64_t> part(size.size(), 1);
  // Dimensions after `split` are whole; those before it are taken one index at a time.
  std::size_t split = size.size();
  std::uint64_t inner = 1;
  for (; split > 0 && inner * static_cast<std::uint64_t>(size[split - 1]) <= most; --split) {
    part[split - 1] = size[split - 1];
    inner *= static_cast<std::uint64_t>(size[split - 1]);
  }
  if (split == 0) return test(begin, part);
  const auto d = split - 1;
  const auto step = static_cast<std::int64_t>(most / inner);
  for (;;) {
    part[d] = std::min(step, size[d] - begin[d]);
    if (!test(begin, part)) return false;
    begin[d] += part[d];
    for (std::size_t at = d; begin[at] == size[at]; --at) {
      if (at == 0) return true;
      begin[at] = 0;
      ++begin[at - 1];
    }
  }
}

}  // namespace

bool same_elements(const ChunkData& a, const ChunkData& b, std::span<const std::int64_t> size) {
  const std::uint64_t bytes = product(size) * item_bytes(a.dtype);
  if (bytes == 0) return true;
  const auto crc = [&](const ChunkData& data) {
    const bool alone = data.storage_bytes == bytes && !data.transformed() &&
                       (data.strides.empty() || data.strides == row_major_strides(size));
    return alone ? data.crc : std::nullopt;
  };
  if (const auto one = crc(a), other = crc(b); one && other) return *one == *other;
  std::vector<std::byte> scratch(kComparedBytes);
  std::vector<std::byte> left;
  std::vector<std::byte> right;
  const auto equal = [&](std::span<const std::int64_t> begin, std::span<const std::int64_t> part) {
    const auto read = [&](const ChunkData& data, std::vector<std::byte>& out) {
      out.resize(product(part) * item_bytes(data.dtype));
      gather(data, size, begin, part, out, row_major_strides(part), scratch);
      transform_elements(data, out);
    };
    read(a, left);
    read(b, right);
    return left == right;
  };
  return all_parts(size, kComparedBytes / item_bytes(a.dtype), equal);
}

}  // namespace fsdp::formats
