// SPDX-License-Identifier: Apache-2.0
// Sets values of a checkpoint, and fills tensors with a number.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {

// KEY=VALUE: every key that the glob matches gets the value.
struct Assignment {
  Glob keys;
  std::string text;
};
// Splits at the first '='.  Throws: kUsage.
Assignment parse_assignment(const std::string& words);

struct ValueChange {
  std::string key;
  Value was;           // of a value
  Value now;           // of a value, or the number that all elements of a tensor get
  std::string tensor;  // "float32 [3]"; empty for a value
};

struct ValuesSet {
  // `source`, or a checkpoint over it in which some tensors are computed (computed_tensors.h).
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;
  std::vector<ValueChange> changes;  // in the order of the content
  bool tensors_changed = false;
};

// Sets what the assignments say.  A value keeps its type (see value_like) unless `retype` is set;
// then the text decides the type.  All elements of a tensor get the number, rounded to the nearest
// one of its dtype.
// Throws: kNotFound naming the nearest key if an assignment matches nothing; kUsage if two match
// one key; kType naming key, type and text if the text is not a value of that type, or is a number
// that the dtype cannot hold; kUnsupported for tensors of complex or packed numbers.
ValuesSet set_values(std::shared_ptr<const Checkpoint> source, const Value& content,
                     const std::vector<Assignment>& assignments, bool retype);

}  // namespace fsdp::formats
