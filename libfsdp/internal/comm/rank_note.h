// SPDX-License-Identifier: Apache-2.0
// The note that a rank keeps about itself at the store.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace fsdp::internal {

struct RankNote {
  struct Place {
    std::uint64_t sequence = 0;
    std::string what;
  };

  bool failed = false;
  bool left = false;  // its process group has ended
  bool lost = false;  // before either, it lost others
  std::uint64_t beat = 0;
  std::string message;                  // of the failure
  std::map<std::string, Place> places;  // by group
};

std::string encode(const RankNote& note);
// Requires: text made by encode().  Malformed text decodes to an empty note.
RankNote decode_rank_note(std::string_view text);

}  // namespace fsdp::internal
