// SPDX-License-Identifier: Apache-2.0
// Merges LoRA adapters into the checkpoint that they were trained for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/lora/adapter_config.h"
#include "formats/changes/lora/adapter_parts.h"
#include "formats/changes/lora/tied_names.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct LoraAdapter {
  std::string path;  // of its folder, escaped
  AdapterConfig config;
  std::shared_ptr<const Checkpoint> tensors;  // adapter_model.safetensors or .bin, or the base
  std::vector<AdapterTensor> names;           // those of `tensors` that are the adapter's
};

struct LoraMergeOptions {
  std::optional<DType> dtype;  // of what changes; nothing: that of the base's tensor
  BaseFacts facts;
};

struct LoraMerge {
  std::shared_ptr<const Checkpoint> checkpoint;  // holds base and adapters
  Value content;                                 // refers to it
  std::string prefix;                            // of the base's keys, before the names of modules
  std::uint64_t merged = 0;                      // weights that got updates
  std::uint64_t updates = 0;                     // of all adapters
  std::uint64_t replaced = 0;      // tensors that an adapter holds whole (modules_to_save, biases)
  std::uint64_t added = 0;         // tensors that the base did not have
  bool untied = false;             // an input embedding and a head that were one are two now
  std::vector<std::string> notes;  // decisions that the user was not asked for
};

// Each weight becomes W + scale * B * A, one adapter after the other, see Note [order of a low-rank
// update]; a tensor that an adapter holds whole replaces the base's.  Tied tensors of the base stay
// tied, except for modules that an adapter trained as a whole, which peft unties.
// `content`: of the base, edited or not.
// Throws: kMismatch for an adapter of another base, naming module, shapes and the nearest key;
// kUnsupported for convolutions in groups and weights that are not floating numbers, by name; what
// adapter_parts and reading throw.
LoraMerge merge_lora(std::shared_ptr<const Checkpoint> base, const Value& content,
                     std::vector<LoraAdapter> adapters, const LoraMergeOptions& options);

}  // namespace fsdp::formats
