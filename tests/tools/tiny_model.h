// SPDX-License-Identifier: Apache-2.0
// Small models of transformers' classes in safetensors.
#pragma once

#include <cstdint>
#include <string>

#include "tests/tools/tiny_safetensors.h"

namespace fsdp::cli {

// Adds transformers' GPT2LMHeadModel of kGpt2Config.  `front`: "transformer." as its state_dict()
// names it.
inline void add_gpt2(TinySafetensors& model, const std::string& front, std::int64_t positions = 6) {
  model.count(front + "wte.weight", {10, 8});
  model.count(front + "wpe.weight", {positions, 8});
  const std::string layer = front + "h.0.";
  for (const char* norm : {"ln_1.", "ln_2."}) {
    model.count(layer + norm + "weight", {8});
    model.count(layer + norm + "bias", {8});
  }
  model.count(layer + "attn.c_attn.weight", {8, 24});
  model.count(layer + "attn.c_attn.bias", {24});
  model.count(layer + "attn.c_proj.weight", {8, 8});
  model.count(layer + "attn.c_proj.bias", {8});
  model.count(layer + "mlp.c_fc.weight", {8, 32});
  model.count(layer + "mlp.c_fc.bias", {32});
  model.count(layer + "mlp.c_proj.weight", {32, 8});
  model.count(layer + "mlp.c_proj.bias", {8});
  model.count(front + "ln_f.weight", {8});
  model.count(front + "ln_f.bias", {8});
}

inline TinySafetensors gpt2(const std::string& front = "transformer.", std::int64_t positions = 6) {
  TinySafetensors model;
  add_gpt2(model, front, positions);
  return model;
}

inline constexpr const char* kGpt2Config =
    R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 6, "vocab_size": 10})";

}  // namespace fsdp::cli
