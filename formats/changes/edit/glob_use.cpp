// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/glob_use.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/meant_name.h"

namespace fsdp::formats {
bool GlobUse::matches(const std::string& name) {
  if (globs_.empty()) return false;
  if (names_.size() < kMostNamesCompared) names_.push_back(name);
  bool any = false;
  for (std::size_t i = 0; i < globs_.size(); ++i) {
    if (!globs_[i].matches(name)) continue;
    used_[i] = true;
    any = true;
  }
  return any;
}

void GlobUse::check_all(std::string_view path, std::string_view what) const {
  const auto unused = std::ranges::find(used_, false);
  if (unused == used_.end()) return;
  const Glob& glob = globs_[static_cast<std::size_t>(unused - used_.begin())];
  throw Error(ErrorCode::kNotFound, cat(path, ": no ", what, " matches ", quote(glob.text(), 200),
                                        meant_glob(glob, names_)));
}

}  // namespace fsdp::formats
