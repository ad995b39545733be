// SPDX-License-Identifier: Apache-2.0
// Finds the key in the base for a name of the model: published files and checkpoints of trainers
// put levels before the names of modules, leave some out, or use older names.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// Returns the parts of a key between its dots.
std::vector<std::string_view> words_of(std::string_view key);

// A name that the base must have, and the adapter that needs it.
struct WantedName {
  std::size_t adapter = 0;
  std::string name;
};

struct BaseNames {
  std::string prefix;  // of the base's keys, before the names of modules
  // Beginnings of names -> beginnings in the base, the longest first; empty if `prefix` suffices.
  std::vector<std::pair<std::string, std::string>> rewrites;

  std::string key_of(std::string_view name) const;
};

// Finds the keys of `wanted` among `leaves`.  First tries one prefix for all names.  If there is
// none, uses the longest common ends of names and keys; the beginnings before them must have no
// numbers, and equal beginnings of names must have equal beginnings in the base.
// `lacking`: the position of a name in `wanted` that has no key either way, -1 if there is none.
struct BaseNaming {
  BaseNames names;
  std::vector<std::string> several;  // prefixes that may all be meant, if more than one
  std::ptrdiff_t lacking = -1;
  std::string lacking_key;  // the key that is missing
};
BaseNaming find_base_names(const std::vector<WantedName>& wanted,
                           const std::map<std::string, Leaf>& leaves);

// Returns the path for a key that stands beside the leaf `beside`: in the deepest container of that
// leaf whose key begins `key`.  The rest of the key is one step if the names of `beside` there have
// dots inside, else one step for each component.
KeyPath path_beside(const Leaf& beside, const std::string& key);

}  // namespace fsdp::formats
