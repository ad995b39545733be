// SPDX-License-Identifier: Apache-2.0
// The ranks of a job.
#pragma once

#include <cstdint>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {

// The most ranks of one job; real jobs have thousands.
inline constexpr std::int64_t kMaxRanks = 1'000'000;

// Returns the ranks below `count` that are not in `present`, a set or map by rank.
template <typename Present>
SomeNames missing_ranks(const Present& present, std::int64_t count) {
  SomeNames missing(8);
  for (std::int64_t rank = 0; rank < count; ++rank) {
    if (!present.contains(rank)) missing.add(rank);
  }
  return missing;
}

}  // namespace fsdp::formats
