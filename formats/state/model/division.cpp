// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/division.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "formats/bytes/base/sha256.h"

namespace fsdp::formats {
namespace {

// Large enough for parallel file systems, which lock and stripe in units of this size.
constexpr std::uint64_t kMostUnitBytes = 1U << 20U;
// A larger value from a file system is not the size of a stripe.
constexpr std::uint64_t kMostStripeBytes = 64U << 20U;
// A page: two ranks never write to the same page if pieces are large enough.
constexpr std::uint64_t kLeastUnitBytes = 4096;
// A share has at least this many units if possible, so that rounding changes it by less than 1 %.
constexpr std::uint64_t kUnitsOfShare = 200;

std::uint64_t numel_of(const TargetPiece& piece) {
  return volume(piece.box.view());
}

// Returns a power of two.
std::uint64_t unit_bytes_for(std::uint64_t total, std::size_t ranks, std::uint64_t stripe_bytes) {
  const std::uint64_t wanted = total / ranks / kUnitsOfShare;
  const std::uint64_t most = std::clamp(stripe_bytes, kMostUnitBytes, kMostStripeBytes);
  return std::bit_floor(std::clamp(wanted, kLeastUnitBytes, most));
}

// Returns the last element at or before `element` at which a range may begin.
std::uint64_t begin_near(const DividedPiece& piece, std::uint64_t element) {
  const std::uint64_t unit = std::max<std::uint64_t>(1, piece.unit);
  const std::uint64_t below = (element + piece.shift) / unit * unit;
  if (below <= piece.shift) return 0;
  return std::min(below - piece.shift, piece.numel);
}

}  // namespace

Division::Division(std::span<const DividedPiece> pieces, std::size_t ranks) {
  // Weights of large checkpoints times ranks are beyond 64 bits.
  unsigned __int128 total = 0;
  numels_.reserve(pieces.size());
  for (const DividedPiece& piece : pieces) {
    numels_.push_back(piece.numel);
    total += static_cast<unsigned __int128>(piece.numel) * piece.element_bytes;
  }
  borders_.reserve(ranks + 1);
  std::size_t at = 0;
  unsigned __int128 before = 0;  // the weight of the pieces before `at`
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const unsigned __int128 wanted = total / ranks * rank + total % ranks * rank / ranks;
    const auto weight = [&] {
      return static_cast<unsigned __int128>(pieces[at].numel) * pieces[at].element_bytes;
    };
    while (at < pieces.size() && before + weight() <= wanted) before += weight(), ++at;
    if (at == pieces.size()) {
      borders_.push_back({at, 0});
      continue;
    }
    const auto element = static_cast<std::uint64_t>((wanted - before) / pieces[at].element_bytes);
    borders_.push_back({at, begin_near(pieces[at], element)});
  }
  // The first rank's range begins with the first piece, even if that is empty.
  if (!borders_.empty()) borders_.front() = {0, 0};
  borders_.push_back({pieces.size(), 0});
}

ElementRange Division::range(std::size_t rank, std::size_t piece) const {
  const Border& begin = borders_[rank];
  const Border& end = borders_[rank + 1];
  if (piece < begin.piece || piece > end.piece || piece >= numels_.size()) return {};
  const std::uint64_t first = piece == begin.piece ? begin.element : 0;
  const std::uint64_t last = piece == end.piece ? end.element : numels_[piece];
  return first < last ? ElementRange{first, last - first} : ElementRange{};
}

void Division::for_each(std::size_t rank,
                        const std::function<void(std::size_t, ElementRange)>& use) const {
  for (std::size_t piece = borders_[rank].piece;
       piece < numels_.size() && piece <= borders_[rank + 1].piece; ++piece) {
    const ElementRange own = range(rank, piece);
    if (own.count != 0) use(piece, own);
  }
}

Division divide_copy(std::span<const TargetPiece> pieces, std::span<const PieceRange> parts,
                     std::size_t ranks, std::uint64_t stripe_bytes) {
  std::uint64_t total = 0;
  for (const PieceRange& part : parts)
    total += part.range.count * item_bytes(pieces[part.piece].written_dtype());
  const std::uint64_t unit_bytes = unit_bytes_for(total, ranks, stripe_bytes);
  std::vector<DividedPiece> line;
  line.reserve(parts.size());
  for (const PieceRange& part : parts) {
    const TargetPiece& piece = pieces[part.piece];
    const std::uint64_t item = item_bytes(piece.written_dtype());
    // Elements that do not lie at multiples of their size cannot meet a multiple of the unit.
    const std::uint64_t inside = (piece.offset + part.range.first * item) % unit_bytes / item;
    line.push_back({part.range.count, item_bytes(piece.dtype) + item, unit_bytes / item, inside});
  }
  return {line, ranks};
}

Division divide_visit(std::span<const std::span<const TargetPiece>> sides,
                      std::uint64_t block_bytes, std::size_t ranks) {
  std::vector<DividedPiece> line(sides[0].size());
  for (std::size_t i = 0; i < line.size(); ++i) {
    std::uint64_t widest = 1;
    for (const auto& side : sides) {
      line[i].element_bytes += item_bytes(side[i].dtype);
      widest = std::max({widest, item_bytes(side[i].dtype), item_bytes(side[i].written_dtype())});
    }
    line[i].numel = numel_of(sides[0][i]);
    line[i].unit = block_bytes / widest;
  }
  return {line, ranks};
}

void agree_on_pieces(Team& team, std::span<const TargetPiece> pieces) {
  if (team.alone()) return;
  Sha256 digest;
  for (const TargetPiece& piece : pieces) {
    Packed packed;
    packed.text(piece.key).number(static_cast<std::uint64_t>(piece.dtype));
    packed.number(static_cast<std::uint64_t>(piece.written_dtype())).number(piece.offset);
    packed.text(piece.file == nullptr ? std::string_view() : piece.file->name());
    for (const auto* numbers : {&piece.box.offset, &piece.box.size}) {
      packed.number(numbers->size());
      for (const std::int64_t number : *numbers) packed.number(static_cast<std::uint64_t>(number));
    }
    const std::string text = packed.take();
    digest.add(std::as_bytes(std::span(text)));
  }
  team.agree("what is copied", digest.finish(), "has another plan");
}

}  // namespace fsdp::formats
