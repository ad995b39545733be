// SPDX-License-Identifier: Apache-2.0
// A checkpoint with some of its values taken apart: the members of a dict, list or tuple that is
// one value of a folder become entries of the index, as in a torch.save file.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Decides whether the dict, list or tuple under `key` is taken apart.  Asked for every value of the
// index before it is read, and then for the members of values that are taken apart.
struct ApartRule {
  std::function<bool(const std::string& key)> wanted;
  bool only_with_tensors = false;  // and a dense tensor lies in it
};

// Returns the source with values taken apart.  Tensors among the members become tensors of the
// index, everything else values; containers keep their kinds in `tree`.  Returns `source` itself if
// nothing is taken apart.
// Throws: the errors of reading the values; kKey if two entries would have the same key.
std::unique_ptr<Checkpoint> with_values_apart(std::unique_ptr<Checkpoint> source,
                                              const ApartRule& rule);

}  // namespace fsdp::formats
