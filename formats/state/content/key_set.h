// SPDX-License-Identifier: Apache-2.0
// The keys of a checkpoint, to find keys that another checkpoint has at another level.
#pragma once

#include <string>
#include <vector>

namespace fsdp::formats {

class KeySet {
 public:
  explicit KeySet(std::vector<std::string> keys);
  // Returns whether there are keys below `key` ("groups.0.lr" below "groups"), but not `key`
  // itself.  "" is above all other keys.
  bool only_below(const std::string& key) const;

 private:
  std::vector<std::string> keys_;  // sorted
};

}  // namespace fsdp::formats
