// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/shadow.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp::test::sim {
namespace {

bool is_ordered(const Access& earlier, const Access& now, const Clock& known) {
  return earlier.time == 0 || earlier.stream == now.stream ||
         known.at(earlier.stream) >= earlier.time;
}

}  // namespace

// Splits the range that covers `at`, if there is one, so that a range begins there.
void Shadow::cut(std::size_t at) {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return;
  --range;
  if (range->first == at || range->second.end <= at) return;
  Range rest = range->second;
  range->second.end = at;
  ranges_.emplace(at, std::move(rest));
}

// Makes ranges cover [begin, end), where cut() was called for both.
void Shadow::fill_gaps(std::size_t begin, std::size_t end) {
  std::size_t covered = begin;
  for (auto range = ranges_.lower_bound(begin); covered < end; ++range) {
    const bool is_last = range == ranges_.end() || range->first >= end;
    const std::size_t next = is_last ? end : range->first;
    if (covered < next) ranges_.emplace(covered, Range{next, {}, {}});
    if (is_last) return;
    covered = range->second.end;
  }
}

void Shadow::touch(std::size_t begin, std::size_t end, bool write, const Access& now,
                   const Clock& known, const OnConflict& on_conflict) {
  if (begin >= end) return;
  cut(begin);
  cut(end);
  if (!write) fill_gaps(begin, end);
  const auto first = ranges_.lower_bound(begin);
  const auto last = ranges_.lower_bound(end);
  for (auto it = first; it != last; ++it) {
    Range& range = it->second;
    if (!is_ordered(range.write, now, known))
      on_conflict(write ? Conflict::kWriteAfterWrite : Conflict::kReadAfterWrite, range.write);
    if (write) {
      for (const Access& read : range.reads) {
        if (!is_ordered(read, now, known)) on_conflict(Conflict::kWriteAfterRead, read);
      }
      continue;
    }
    const auto same = std::find_if(range.reads.begin(), range.reads.end(),
                                   [&](const Access& read) { return read.stream == now.stream; });
    if (same == range.reads.end()) {
      range.reads.push_back(now);
    } else {
      *same = now;
    }
  }
  if (!write) return;
  ranges_.erase(first, last);
  ranges_.emplace(begin, Range{end, now, {}});
}

void Shadow::settle(int stream, std::uint32_t time) {
  const auto is_over = [&](const Access& access) {
    return access.stream == stream && access.time <= time;
  };
  for (auto& [begin, range] : ranges_) {
    std::erase_if(range.reads, is_over);
    if (is_over(range.write)) range.write.time = 0;
  }
}

}  // namespace fsdp::test::sim
