// SPDX-License-Identifier: Apache-2.0
// A map named on the command line, and the values of its parameters.
#pragma once

#include <string>
#include <vector>

#include "formats/changes/map/mapping.h"

namespace fsdp::cli {

// The word for keeping the names.
inline constexpr const char* kNoMap = "none";

struct MapChoice {
  std::vector<std::string> parameters;  // --set: "n_heads=32"
  std::string config;                   // a config.json; empty: none

  // Returns the options for a map.  `word`: a file of rules, or a built-in map.  Throws: kNotFound
  // with the nearest name; kUsage, kJson; what reading and parse_rules throw.
  formats::map::MapOptions options(const std::string& word,
                                   formats::map::Direction direction) const;
};

}  // namespace fsdp::cli
