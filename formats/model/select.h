// SPDX-License-Identifier: Apache-2.0
// Selects keys of a checkpoint: globs over fully qualified names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// Returns whether `key` matches `glob`: `*` is any text without a dot, `**` any text, `?` one
// character but a dot,
// `[abc]`, `[a-z]`, `[!a]` one of a set.  The whole key must match.  Linear in both.
// Throws: kUsage if a '[' is not closed.
bool glob_matches(std::string_view glob, std::string_view key);

// Keys matched by any of `include` (all if it is empty) and by none of `exclude`.
struct KeySelection {
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  bool everything() const { return include.empty() && exclude.empty(); }
  bool selects(std::string_view key) const;
};

}  // namespace fsdp::formats
