// SPDX-License-Identifier: Apache-2.0
#include "formats/store/pace.h"

#include <algorithm>
#include <limits>

namespace fsdp::formats {
namespace {

// Requests from which a rate is measured.
constexpr std::uint64_t kSpell = 64;
// Over what comes in the time of the fastest request: what is measured is noisy, and where too few
// were under way, the rate is theirs and not the link's, so that the next spell may find more.
constexpr double kMore = 3;
// Bytes a second of a fast link, before any was measured.
constexpr double kFastLink = 2.5e9;

}  // namespace

void Pace::answered(std::uint64_t bytes, Time begin, Time end, std::uint64_t whole) {
  if (bytes < whole) return;
  // Nothing was under way for a while: that time says nothing of the link.
  if (begin >= last_end_) current_ = {};
  last_end_ = std::max(last_end_, end);
  if (current_.requests == 0) current_.begin = begin;
  ++current_.requests;
  current_.bytes += bytes;
  const std::chrono::duration<double> took = end - begin;
  current_.fastest = current_.requests == 1 ? took : std::min(took, current_.fastest);
  if (current_.requests < kSpell) return;
  const std::chrono::duration<double> all = end - current_.begin;
  if (all.count() > 0) current_.rate = static_cast<double>(current_.bytes) / all.count();
  last_ = current_;
  current_ = {};
}

std::uint64_t Pace::bytes_at_once(std::uint64_t whole) const {
  // Of two spells, since whoever reads may have paused in one.
  const double seconds = std::max(current_.fastest, last_.fastest).count();
  if (seconds == 0) return std::numeric_limits<std::uint64_t>::max();
  const double best = kMore * seconds * (last_.rate == 0 ? kFastLink : last_.rate);
  return std::max(kFewest * whole, static_cast<std::uint64_t>(std::min(best, 0x1p62)));
}

}  // namespace fsdp::formats
