// SPDX-License-Identifier: Apache-2.0
// Lists the entries of a sharded module's state dict in Python's order: for each module its
// parameters, then its buffers, then its children, each in order of registration.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "libfsdp/internal/units/unit.h"
#include "libfsdp/state_value.h"

namespace fsdp {
class ShardedModule;
}  // namespace fsdp

namespace fsdp::internal {

// Exactly one of `parameter`, `flat` and `whole` is set.
struct StateEntry {
  std::string name;
  Parameter* parameter = nullptr;  // sharded
  const FlatGroup* flat = nullptr;
  at::Tensor whole;               // an ignored parameter or a buffer: the module's own
  c10::ScalarType built_dtype{};  // of `whole`: the dtype that the module was built with
};

// Returns an entry for every name of every parameter and buffer; if `flat`, the flat buffers of
// each unit in place of its parameters.
std::vector<StateEntry> state_entries(const ShardedModule& model, bool flat = false);

// Describes which parameters lie where in a flat buffer, on which rank: flat buffers fit each other
// if these texts are equal.  "rank 1 of 2: w [5, 3] at 0, b [5] at 16".
std::string layout_text(const FlatGroup& group, const ShardedModule& model);
// Returns ": expected the layout '...', found ...", or nothing if `found` is this layout's text.
std::string layout_problem(const StateValue* found, const FlatGroup& group,
                           const ShardedModule& model);
// Returns the key of the layout text, which stands beside the flat buffer's key.
std::string layout_key(const std::string& flat_name);

}  // namespace fsdp::internal
