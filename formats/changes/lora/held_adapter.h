// SPDX-License-Identifier: Apache-2.0
// Splits the state dict of a peft model, as a training checkpoint holds it, into adapter and base.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "formats/changes/lora/adapter_parts.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

struct HeldAdapter {
  std::string prefix;                // of the model's keys
  std::vector<AdapterTensor> names;  // of the adapter, without the prefix
  // Everything else, under the names that the model has without peft; a nested dict.
  Value base;
  std::size_t tensors = 0;  // of the model, in `base`
  std::size_t dropped = 0;  // leaves about the adapter that are not its tensors: optimizer states
};

// Returns whether a state dict holds matrices of LoRA.
bool holds_adapter(const Value& content);

// `path`: for messages.
// Throws: kMismatch if there is no adapter, or if there are adapters of several models;
// kRekeyCollision if two tensors of the base get one name.
HeldAdapter held_adapter(const std::string& path, const Value& content);

}  // namespace fsdp::formats
