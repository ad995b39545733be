// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fsdp::formats {

// The most ranks of one job; real jobs have thousands.
inline constexpr std::int64_t kMaxRanks = 1'000'000;

}  // namespace fsdp::formats
