// SPDX-License-Identifier: Apache-2.0
// Finds everything that is wrong with a state dict before anything is written, and reports it all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "libfsdp/shard_layout.h"
#include "libfsdp/state_dict.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

class LoadProblems {
 public:
  void add(std::string problem) { problems_.push_back(std::move(problem)); }
  // Adds one problem for each key, with the nearest of the other list.  `into`: "the module".
  void add_keys(const LoadReport& keys, std::string_view into);
  // Throws: c10::Error "<what>: <problem>" or one problem on each line, if there is any.
  void check(const std::string& what) const;

 private:
  std::vector<std::string> problems_;
};

// Throws: c10::Error if there is no such key, or "'<key>'<of> is <kind>, expected a list".
const StateList& list_at(const StateDict& dict, const char* key, const std::string& of = {});

// "float32"
std::string name_of(c10::ScalarType dtype);

// Returns this rank's part of the tensor in `value`.  Undefined if there is none; the reason is
// then among the problems: not a tensor, another shape, another part, no memory.  A view if
// possible; whole tensors are not copied to cut them.
at::Tensor rows_in(const StateValue& value, const std::string& key, const ShardLayout& layout,
                   int part, LoadProblems& problems);
// The same for a tensor that every rank holds whole.
at::Tensor whole_in(const StateValue& value, const std::string& key, at::IntArrayRef shape,
                    LoadProblems& problems);

}  // namespace fsdp::internal
