// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/pace.h"

#include <algorithm>
#include <limits>

namespace fsdp::formats {
namespace {

// The number of requests over which a rate is measured.
constexpr std::uint64_t kSpell = 64;
constexpr unsigned kRest = 16;
// Factor over the bytes that arrive in the time of the fastest request.  If too few requests were
// under way, the measured rate is theirs and not the link's; the factor lets the next spell find
// more.
constexpr double kMore = 3;
// The factor by which a higher limit must raise the rate.
constexpr double kBetter = 1.15;
// Bytes per second of a fast link, assumed before the first measurement.
constexpr double kFastLink = 2.5e9;

}  // namespace

void Pace::answered(std::uint64_t bytes, Time begin, Time end, std::uint64_t whole) {
  if (bytes < whole) return;
  // No request was under way for a while: that time says nothing about the link.
  if (begin >= last_end_) spell_ = {};
  last_end_ = std::max(last_end_, end);
  const double took = std::chrono::duration<double>(end - begin).count();
  if (spell_.requests == 0) {
    spell_.begin = begin;
    spell_.fastest = took;
  }
  ++spell_.requests;
  spell_.bytes += bytes;
  spell_.fastest = std::min(spell_.fastest, took);
  if (!measured_) limit_ = kMore * kFastLink * spell_.fastest;
  if (spell_.requests < kSpell) return;
  const double all = std::chrono::duration<double>(end - spell_.begin).count();
  if (all > 0) learn(static_cast<double>(spell_.bytes) / all, spell_.fastest);
  spell_ = {};
}

void Pace::learn(double rate, double fastest) {
  const double wanted = kMore * rate * fastest;
  if (fastest > 2 * rest_seconds_) rest_ = 0;
  if (limit_before_ != 0 && rate < kBetter * rate_before_) {
    limit_ = limit_before_;
    limit_before_ = 0;
    rest_ = kRest;
    rest_seconds_ = fastest;
  } else if (wanted <= limit_ || !measured_) {
    limit_ = wanted;
    limit_before_ = 0;
  } else if (rest_ != 0) {
    --rest_;
  } else {
    limit_before_ = limit_;
    rate_before_ = rate;
    limit_ = wanted;
  }
  measured_ = true;
}

std::uint64_t Pace::bytes_at_once(std::uint64_t whole) const {
  if (limit_ == 0) return std::numeric_limits<std::uint64_t>::max();
  return std::max(kFewest * whole, static_cast<std::uint64_t>(std::min(limit_, 0x1p62)));
}

}  // namespace fsdp::formats
