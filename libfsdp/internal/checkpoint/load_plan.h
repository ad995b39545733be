// SPDX-License-Identifier: Apache-2.0
// Plans which data of a checkpoint goes where in a state dict, and finds everything that does not
// fit before anything is written to.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/model/index.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

class LoadPlan {
 public:
  // Lifetime: the reader outlives the plan.
  LoadPlan(CheckpointReader& reader, const LoadOptions& options)
      : reader_(reader), options_(options) {}

  // Compares `state` with a part of the checkpoint's content, and notes what to read.  Messages
  // name the state's keys, after `prefix`.  Lists that hold tensors, dicts, or such lists are taken
  // apart; tuples are single values.
  // Lifetime: `state` outlives finish().
  void match(StateDict& state, const formats::Value& content, const std::string& prefix = "");
  // Notes that tensor `number` of the checkpoint is read into `target`.
  void fill(const std::string& key, std::size_t number, const StateValue& target);

  void missing(const std::string& key) { report_.missing.push_back(key); }
  void unexpected(const std::string& key) { report_.unexpected.push_back(key); }
  // Adds a problem that no option can excuse.
  void problem(const std::string& text) { problems_.push_back(text); }

  // Throws: c10::Error naming every problem found.
  void check() const;
  // Puts plain values into the state; call after everything was read.
  LoadReport finish();

 private:
  CheckpointReader& reader_;
  const LoadOptions options_;
  LoadReport report_;
  std::vector<std::string> problems_;
  std::vector<std::pair<StateValue*, StateValue>> values_;  // target, value
};

// Notes what this rank needs of `part`, an optimizer of the checkpoint (by id, by name, or
// flattened).  `key` is the key of the part, for messages; options without a counterpart are added
// to `left_out`.  No communication.  The names of ids come from "param_names"; else, if there are
// as many groups of the same sizes, from the places of the optimizer's parameters; else from the
// order and shapes of the model's parameters (parameter_order.h).
// Returns: the input of optim_state_dict_to_load, complete once the reader has read.
// Throws: what read_optimizer and names_of_ids throw.
StateDict plan_optimizer(LoadPlan& plan, CheckpointReader& reader, const ShardedModule& model,
                         const torch::optim::Optimizer& optimizer, const formats::Value& part,
                         bool flattened, const std::string& key,
                         std::vector<std::string>& left_out);

}  // namespace fsdp::internal
