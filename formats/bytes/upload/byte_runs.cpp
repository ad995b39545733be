// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/byte_runs.h"

#include <algorithm>
#include <iterator>

namespace fsdp::formats {

ByteRuns::Run ByteRuns::add(std::uint64_t begin, std::uint64_t end) {
  auto next = ends_.lower_bound(begin);
  if (next != ends_.end() && next->first < end) return {};
  auto before = next == ends_.begin() ? ends_.end() : std::prev(next);
  if (before != ends_.end() && before->second > begin) return {};
  if (before != ends_.end() && before->second == begin) {
    before->second = end;
  } else {
    before = ends_.emplace_hint(next, begin, end);
  }
  if (next != ends_.end() && next->first == end) {
    before->second = next->second;
    ends_.erase(next);
  }
  return {before->first, before->second};
}

std::vector<ByteRuns::Run> ByteRuns::take(std::uint64_t begin, std::uint64_t end) {
  std::vector<Run> taken;
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second > begin) --at;
  while (at != ends_.end() && at->first < end) {
    const Run run{at->first, at->second};
    at = ends_.erase(at);
    if (run.begin < begin) ends_.emplace(run.begin, begin);
    if (run.end > end) at = ends_.emplace(end, run.end).first;
    taken.push_back({std::max(run.begin, begin), std::min(run.end, end)});
    if (run.end > end) break;
  }
  return taken;
}

std::vector<ByteRuns::Run> ByteRuns::runs() const {
  std::vector<Run> all;
  all.reserve(ends_.size());
  for (const auto& [begin, end] : ends_) all.push_back({begin, end});
  return all;
}

}  // namespace fsdp::formats
