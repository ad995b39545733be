// SPDX-License-Identifier: Apache-2.0
// The keys that peft gives the tensors of a LoRA adapter.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::formats {

// Before the names of modules.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";
// After them, in the base.
inline constexpr std::string_view kWeightSuffix = ".weight";
inline constexpr std::string_view kBiasSuffix = ".bias";

// Returns the module of a parameter; empty if the key has no dot.
inline std::string module_of(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return dot == key.npos ? std::string() : key.substr(0, dot);
}

struct PeftKeys {
  std::string a;
  std::string b;
};

// `embedding`: the module is an nn.Embedding.
inline PeftKeys peft_keys(const std::string& module, bool embedding) {
  const std::string front = std::string(kPeftPrefix) + module;
  if (embedding) return {front + ".lora_embedding_A", front + ".lora_embedding_B"};
  return {front + ".lora_A.weight", front + ".lora_B.weight"};
}

// Returns the key of a tensor that an adapter holds whole.
inline std::string peft_whole_key(const std::string& name) {
  return std::string(kPeftPrefix) + name;
}

}  // namespace fsdp::formats
