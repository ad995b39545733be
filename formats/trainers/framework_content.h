// SPDX-License-Identifier: Apache-2.0
// State dicts as trainers lay them out: models, optimizers, and the rest.
#pragma once

#include <string>
#include <vector>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// A state dict taken apart by kinds of parts (see content/state_parts.h).
struct TrainerState {
  std::vector<Value> models;       // names of parameters and buffers to tensors
  std::vector<Value> optimizers;   // {"state": ..., "param_groups": [...]}
  std::vector<Value::Entry> rest;  // of the top level, under its keys
};

// Throws: kUnsupported where an optimizer is flattened (it is put together before), or where parts
// lie so deep that the rest around them has no place.
TrainerState trainer_state(const Value& root);

// What Lightning's folders keep in DCP: `model` (named so by FSDPStrategy) and `optimizer_0`, ...
// Throws: kUnsupported where there is not one model.
Value lightning_sharded(const TrainerState& state, const std::string& model_key);
// What they keep in meta.pt: the rest, with the keys that Lightning asks for where it lacks them.
Value lightning_meta(const TrainerState& state);
// A whole Lightning file: `state_dict`, `optimizer_states`, and the rest.
// Throws: kUnsupported where there is not one model.
Value lightning_file(const TrainerState& state);

// One of Accelerate's folders: {"model": ...} or {"optimizer": ...}.
Value under_key(const std::string& key, const Value& value);

}  // namespace fsdp::formats
