// SPDX-License-Identifier: Apache-2.0
// State dicts in the layouts of trainers: models, optimizers, and the rest.
#pragma once

#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/rewrite/optimizer_state.h"

namespace fsdp::formats {

// A state dict divided into kinds of parts (see content/state_parts.h).
struct TrainerState {
  std::vector<Value> models;       // names of parameters and buffers to tensors
  std::vector<Value> optimizers;   // {"state": ..., "param_groups": [...]}
  std::vector<Value::Entry> rest;  // of the top level, under its keys
};

// Divides a state dict.  Throws: kUnsupported if an optimizer is flattened (callers must combine it
// first), or if parts lie so deep that there is no place for the rest around them.
TrainerState trainer_state(const Value& root);

// Returns the same, with all optimizers in the form `form`.  Throws: what rekey_content throws; the
// remedy of an order that is not known is rekey.
TrainerState trainer_state_of(const Checkpoint& source, const Value& content, OptimizerForm form);

// Returns the DCP content of Lightning's folders: `model` (named so by FSDPStrategy) and
// `optimizer_0`, ... Throws: kUnsupported unless there is exactly one model.
Value lightning_sharded(const TrainerState& state, const std::string& model_key);
// Returns the content of Lightning's meta.pt: the rest, plus the keys that Lightning requires if
// they are missing.
Value lightning_meta(const TrainerState& state);
// Returns a whole Lightning file: `state_dict`, `optimizer_states`, and the rest.
// Throws: kUnsupported unless there is exactly one model.
Value lightning_file(const TrainerState& state);

}  // namespace fsdp::formats
