// SPDX-License-Identifier: Apache-2.0
// A map named on the command line, and the values of its parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/changes/map/mapping.h"

namespace fsdp::cli {

// The word for keeping the names.
inline constexpr const char* kNoMap = "none";

// Returns what to type instead of a word that is not a map.
std::string meant_map(const std::string& word);

struct MapChoice {
  std::vector<std::string> parameters;  // --set: "n_heads=32"
  std::string config;                   // a config.json; empty: none

  // Returns the options for a map.  `word`: a file of rules, or a built-in map.  Throws: kNotFound
  // with the nearest name; kUsage, kJson; what reading and parse_rules throw.
  formats::map::MapOptions options(const std::string& word,
                                   formats::map::Direction direction) const;

  // Returns the result of the map backwards from `content`, which `steps` made and which belongs to
  // `made`.  Returns nothing if a step computes, so that its result does not tell what it was made
  // of, or if the map has no inverse that takes the names.  Lifetime: `made` outlives the result.
  // Throws: what map_content throws.
  std::optional<formats::map::Mapped> undone(const formats::Checkpoint& made,
                                             const formats::Value& content, const std::string& word,
                                             const std::vector<formats::map::MapStep>& steps) const;
};

}  // namespace fsdp::cli
