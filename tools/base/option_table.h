// SPDX-License-Identifier: Apache-2.0
// Every option of fsdp-ckpt and its one meaning, whichever verbs take it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp::cli {

struct OptionMeaning {
  std::string_view names;  // "-k,--keys"
  std::string_view type;   // the placeholder of its value; empty for a flag
  std::string_view help;
  std::int64_t least = 0;  // the range of an integer
  std::int64_t most = INT64_MAX;
};

// Returns the table, in the order of the long names, each of which occurs once.
std::span<const OptionMeaning> option_table();

}  // namespace fsdp::cli
