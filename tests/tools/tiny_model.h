// SPDX-License-Identifier: Apache-2.0
// Small models of transformers' classes in safetensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace fsdp::cli {

// Tensors of float32, 0, 1, 2, ... through the file.
struct TinyModel {
  std::string header;
  std::uint64_t bytes = 0;

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::uint64_t numel = 1;
    std::string sizes;
    for (const std::int64_t size : shape) {
      numel *= static_cast<std::uint64_t>(size);
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    }
    header += (header.empty() ? "" : ",") +
              ("\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + sizes + "],\"data_offsets\":[") +
              std::to_string(bytes) + "," + std::to_string(bytes + 4 * numel) + "]}";
    bytes += 4 * numel;
  }
  void write(const std::string& path) const {
    const std::string text = "{" + header + "}";
    std::string file;
    for (std::size_t i = 0; i < 8; ++i)
      file.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xFFU));
    std::string data(bytes, '\0');
    for (std::size_t i = 0; i < bytes / 4; ++i) {
      const auto number = static_cast<float>(i);
      std::memcpy(data.data() + 4 * i, &number, 4);
    }
    test::write_file(path, file + text + data);
  }
};

// Adds transformers' GPT2LMHeadModel of kGpt2Config, as its state_dict() names it.
inline void add_gpt2(TinyModel& model, const std::string& front, std::int64_t positions = 6) {
  model.add(front + "transformer.wte.weight", {10, 8});
  model.add(front + "transformer.wpe.weight", {positions, 8});
  const std::string layer = front + "transformer.h.0.";
  for (const char* norm : {"ln_1.", "ln_2."}) {
    model.add(layer + norm + "weight", {8});
    model.add(layer + norm + "bias", {8});
  }
  model.add(layer + "attn.c_attn.weight", {8, 24});
  model.add(layer + "attn.c_attn.bias", {24});
  model.add(layer + "attn.c_proj.weight", {8, 8});
  model.add(layer + "attn.c_proj.bias", {8});
  model.add(layer + "mlp.c_fc.weight", {8, 32});
  model.add(layer + "mlp.c_fc.bias", {32});
  model.add(layer + "mlp.c_proj.weight", {32, 8});
  model.add(layer + "mlp.c_proj.bias", {8});
  model.add(front + "transformer.ln_f.weight", {8});
  model.add(front + "transformer.ln_f.bias", {8});
}

inline TinyModel gpt2(const std::string& front = "", std::int64_t positions = 6) {
  TinyModel model;
  add_gpt2(model, front, positions);
  return model;
}

inline constexpr const char* kGpt2Config =
    R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 6, "vocab_size": 10})";

}  // namespace fsdp::cli
