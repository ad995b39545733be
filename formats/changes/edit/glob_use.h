// SPDX-License-Identifier: Apache-2.0
// Globs that must each match something.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/state/model/select.h"

namespace fsdp::formats {

// Lifetime: the globs outlive the object.
class GlobUse {
 public:
  explicit GlobUse(const std::vector<Glob>& globs) : globs_(globs), used_(globs.size()) {}

  // Returns whether any glob matches; notes all that do.
  bool matches(const std::string& name);
  // Throws: kNotFound "<path>: no <what> matches '<glob>'" if a glob matched nothing, naming the
  // nearest name that was asked for.
  void check_all(std::string_view path, std::string_view what) const;

 private:
  const std::vector<Glob>& globs_;
  std::vector<bool> used_;
  std::vector<std::string> names_;  // some of those asked for
};

}  // namespace fsdp::formats
