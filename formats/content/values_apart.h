// SPDX-License-Identifier: Apache-2.0
// A checkpoint seen with some of its values taken apart: what lies in a dict, a list or a tuple
// that is one value of a folder stands in the index on its own, as it does in a torch.save file.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Whether the dict, list or tuple under `key` is taken apart.  Asked for every value of the index
// before it is read, and then for what was found in those that are.
struct ApartRule {
  std::function<bool(const std::string& key)> wanted;
  bool only_with_tensors = false;  // and a dense tensor lies in it
};

// Tensors among the members become tensors of the index, everything else values; containers keep
// their kinds in `tree`.  The checkpoint itself where nothing is taken apart.
// Throws: what reading the values throws; kKey where two entries would have one key.
std::unique_ptr<Checkpoint> with_values_apart(std::unique_ptr<Checkpoint> source,
                                              const ApartRule& rule);

}  // namespace fsdp::formats
