// SPDX-License-Identifier: Apache-2.0
// Which key of the base a name of the model has: published files and checkpoints of trainers put
// levels before the names of modules, leave some out, or have older names for them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// A name that has to be there, and who asks for it.
struct WantedName {
  std::size_t adapter = 0;
  std::string name;
};

struct BaseNames {
  std::string prefix;  // of the base's keys, before the names of modules
  // Beginnings of names -> those in the base, the longest first; empty where the prefix is all.
  std::vector<std::pair<std::string, std::string>> rewrites;

  std::string key_of(std::string_view name) const;
};

// Finds how `wanted` are named among `leaves`.  First one prefix before all of them; if there is
// none, by the longest ends that are ends of keys, where what differs before them has no numbers
// and is the same for the same beginning. Returns the wanted name that fits no way in `lacking`, -1
// if none.
struct BaseNaming {
  BaseNames names;
  std::vector<std::string> several;  // prefixes that may all be meant, if more than one
  std::ptrdiff_t lacking = -1;
  std::string lacking_key;  // what it would be called
};
BaseNaming find_base_names(const std::vector<WantedName>& wanted,
                           const std::map<std::string, Leaf>& leaves);

}  // namespace fsdp::formats
