// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/division.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace fsdp::formats::flat {
namespace {

// 16 bytes in elements of 8, 4, 2 and 1 bytes: the type counts that parameters have in forward and
// backward (MixedPrecision.param_dtype), not the one they are saved in.
constexpr std::int64_t kAlignments[] = {0, 2, 4, 8, 16};

// Returns `count` rounded up to a multiple; nothing if that exceeds 2^63 - 1.
std::optional<std::int64_t> rounded_up(std::int64_t count, std::int64_t multiple) {
  const std::int64_t over = count % multiple;
  std::int64_t out = count;
  if (over != 0 && __builtin_add_overflow(count, multiple - over, &out)) return std::nullopt;
  return out;
}

// Lays the parameters out.  Returns nothing if they do not end within `numel` elements.
std::optional<Division> laid_out(std::span<const std::int64_t> numels, std::int64_t alignment,
                                 std::int64_t numel) {
  Division out;
  out.alignment = alignment;
  std::int64_t end = 0;
  for (const std::int64_t count : numels) {
    const auto begin = alignment == 0 ? std::optional(end) : rounded_up(end, alignment);
    if (!begin || *begin > numel || count > numel - *begin) return std::nullopt;
    if (*begin != end) out.padding.push_back({end, *begin});
    out.begins.push_back(*begin);
    end = *begin + count;
  }
  if (end != numel) out.padding.push_back({end, numel});
  return out;
}

// Returns whether the elements behind the last parameter are as many as FSDP adds: fewer than there
// are ranks.
bool ends_well(const Division& division, const FlatSize& flat) {
  const std::int64_t tail = division.padding.empty() || division.padding.back().end != flat.numel
                                ? 0
                                : flat.numel - division.padding.back().begin;
  if (division.alignment == 0 && !flat.padded) return tail == 0;
  // The number of ranks divides the size, so every rank has a part of the same length.
  if (flat.shard == 0) return tail == 0;
  return flat.numel % flat.shard == 0 && tail < flat.numel / flat.shard;
}

}  // namespace

std::vector<Division> divisions(std::span<const std::int64_t> numels, const FlatSize& flat) {
  std::vector<Division> found;
  for (const std::int64_t alignment : kAlignments) {
    auto division = laid_out(numels, alignment, flat.numel);
    if (!division || !ends_well(*division, flat) ||
        std::ranges::find(found, *division) != found.end())
      continue;
    found.push_back(std::move(*division));
  }
  return found;
}

}  // namespace fsdp::formats::flat
