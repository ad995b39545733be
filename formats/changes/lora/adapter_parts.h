// SPDX-License-Identifier: Apache-2.0
// Sorts the tensors of a LoRA adapter by their roles, whatever wrappers their names went through.
// Source: peft 0.21's get_peft_model_state_dict, and the state dicts of its models; torchtune 0.6's
// LoRALinear; Megatron-Bridge's AdapterWrapper.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/model/index.h"

namespace fsdp::formats {

// A tensor of an adapter, by its position in an index.
struct AdapterTensor {
  std::string key;
  std::size_t number = 0;
};

// The matrices of a module and their companions, as positions in the adapter's index.
struct AdapterPair {
  std::string module;                    // its name in the model
  std::size_t depth = 0;                 // the number of other parameters wrapped inside
  std::optional<std::size_t> a;          // [rank, in], for embeddings [rank, rows]
  std::optional<std::size_t> b;          // [out, rank], for embeddings [columns, rank]
  std::optional<std::size_t> bias;       // [out], of B
  std::optional<std::size_t> magnitude;  // of DoRA
  bool embedding = false;                // its weight is [in, out], as that of a Conv1D
};

struct AdapterWhole {
  std::size_t number = 0;
  bool of_base = false;  // named as the tensor inside a wrapped module of the base
  bool saved = false;    // named as a tensor of a module beside the base's
};

struct AdapterParts {
  std::vector<AdapterPair> pairs;             // embeddings first, then by name
  std::map<std::string, AdapterWhole> whole;  // by the key in the model
  std::map<std::string, std::size_t> tokens;  // module -> the tensor of its trained rows
};

// Returns `key` without what wraps a model: 'module.', '_orig_mod.', '_fsdp_wrapped_module.',
// '_checkpoint_wrapped_module.', '_forward_module.', and peft's 'base_model.model.'.
std::string without_wrappers(std::string_view key);

// Returns whether a key names a tensor that an adapter adds to a model.  The keys of the tensor's
// optimizer states have other ends.
bool is_adapter_key(std::string_view key);

// Returns the tensors by role.  `path`: of the adapter, for messages.
// Throws: kUnsupported for a tensor that is not of floating numbers, and for an unknown kind of
// LoRA; kMismatch for a matrix A without its B or the reverse, for adapters of two names, and if
// there is no tensor of an adapter.
AdapterParts adapter_parts(const std::string& path, const Index& index,
                           const std::vector<AdapterTensor>& tensors);

// Returns the tensors under the names that peft's save_pretrained gives them, sorted by name.
std::vector<AdapterTensor> peft_tensors(const AdapterParts& parts);

}  // namespace fsdp::formats
