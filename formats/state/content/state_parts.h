// SPDX-License-Identifier: Apache-2.0
// Finds the parts of a nested state dict: models, optimizers and others.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

enum class PartKind {
  kModel,               // names of parameters and buffers to tensors
  kOptimizer,           // {"state": ..., "param_groups": [...]}
  kFlattenedOptimizer,  // "state.<fqn>.<name>" and "param_groups.<fqn>.<option>"
  kOther
};

struct StatePart {
  PartKind kind;
  KeyPath path;  // of the part within the state dict; empty: the whole of it

  bool is_optimizer() const {
    return kind == PartKind::kOptimizer || kind == PartKind::kFlattenedOptimizer;
  }
  // Returns whether a path leads to the part or into it.
  bool holds(const KeyPath& other) const {
    return other.size() >= path.size() && std::equal(path.begin(), path.end(), other.begin());
  }
};

// Returns the parts of `root` in its order: every member of the top level, the members of
// containers of parts (Lightning's optimizer_states, {"app": {"model": ..., "optim": ...}}), or the
// whole if it is a bare model or optimizer state dict.  A member that holds neither is one kOther
// part.
//
// torchtitan's folders hold model keys at the top level beside `optimizer`: if no member is a
// model, those keys form one kModel part with an empty path, which comes first.  The tensors and
// `_extra_state` values of the top level belong to it; states of random number generators do not.
// Paths have integer keys as text.
std::vector<StatePart> state_parts_of(const Value& root);

}  // namespace fsdp::formats
