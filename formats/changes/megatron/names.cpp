// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/names.h"

#include <array>
#include <charconv>

namespace fsdp::formats::megatron {
namespace {

constexpr std::string_view kState = "optimizer.state.";
// In front of experts: of a layer, or of one kind of several ("mlp.text_moe_layer.experts.").
constexpr std::array<std::string_view, 2> kExperts = {".mlp.experts.", "_moe_layer.experts."};
// The norm before the perceptron, alone and as part of its first matrix.
constexpr std::string_view kNorm = "pre_mlp_layernorm.";
constexpr std::string_view kFusedNorm = "mlp.linear_fc1.layer_norm_";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes a decimal number without leading zeros from the front of `text`.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || !is_digit(text[0]) || (text[0] == '0' && length > 1))
    return std::nullopt;
  text.remove_prefix(length);
  return number;
}

// Returns the key without a front such as "chained_0.", of optimizers of dense parameters and of
// experts.
std::string_view without_chain(std::string_view key) {
  constexpr std::string_view kChained = "chained_";
  std::string_view rest = key;
  if (!rest.starts_with(kChained)) return key;
  rest.remove_prefix(kChained.size());
  if (!take_number(rest) || !rest.starts_with('.')) return key;
  return rest.substr(1);
}

}  // namespace

bool is_sharded_object(std::string_view key) {
  return key.find("/shard_") != std::string_view::npos;
}

DistKey dist_key(std::string_view key) {
  const std::string_view inner = without_chain(key);
  if (!inner.starts_with(kState)) return {{}, std::string(key)};
  const std::string_view rest = inner.substr(kState.size());
  const std::size_t dot = rest.find('.');
  if (dot == 0 || dot == std::string_view::npos) return {{}, std::string(key)};
  return {std::string(rest.substr(0, dot)), std::string(rest.substr(dot + 1))};
}

bool is_bucket(std::string_view key) {
  return without_chain(key).starts_with("optimizer.distributed.");
}

std::optional<Numbered> layer_of(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t at = name.find(kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view block = name.substr(0, at);
  if (!block.ends_with("decoder") && !block.ends_with("encoder")) return std::nullopt;
  Numbered out;
  out.before = name.substr(0, at + kLayers.size());
  std::string_view rest = name.substr(at + kLayers.size());
  std::string_view numbered = rest;
  if (const auto number = take_number(numbered); number && numbered.starts_with('.')) {
    out.number = number;
    rest = numbered.substr(1);
  }
  out.after = rest;
  return out;
}

std::optional<Numbered> expert_of(std::string_view name) {
  std::size_t end_of_front = std::string_view::npos;
  for (const std::string_view front : kExperts) {
    if (const std::size_t at = name.find(front); at != std::string_view::npos)
      end_of_front = at + front.size();
  }
  if (end_of_front == std::string_view::npos) return std::nullopt;
  Numbered out;
  out.before = name.substr(0, end_of_front);
  std::string_view rest = name.substr(end_of_front);
  for (const std::string_view inner : {"experts.", "local_experts."}) {
    if (!rest.starts_with(inner)) continue;
    std::string_view numbered = rest.substr(inner.size());
    std::string_view after = numbered;
    if (const auto number = take_number(numbered); number && numbered.starts_with('.')) {
      out.number = number;
      after = numbered.substr(1);
    } else if (inner == "local_experts.") {
      return std::nullopt;
    }
    out.after = after;
    return out;
  }
  // linear_fc1.weight7: the number follows the kind of the parameter, before "_w" and "_v".
  std::string_view end;
  for (const std::string_view half : {"_w", "_v"}) {
    if (rest.ends_with(half)) end = half;
  }
  const std::string_view whole = rest.substr(0, rest.size() - end.size());
  std::size_t digits = whole.size();
  while (digits > 0 && is_digit(whole[digits - 1])) --digits;
  std::string_view number = whole.substr(digits);
  if (number.empty()) return std::nullopt;
  const auto value = take_number(number);
  if (!value || !number.empty()) return std::nullopt;
  out.number = value;
  out.after = std::string(whole.substr(0, digits)) + std::string(end);
  return out;
}

std::string layer_name(const Numbered& layer) {
  return layer.before + (layer.number ? std::to_string(*layer.number) + "." : "") + layer.after;
}

std::string expert_name(const Numbered& expert) {
  if (!expert.number) return expert.before + "experts." + expert.after;
  std::string kind = expert.after;
  std::string half;
  if (kind.ends_with("_w") || kind.ends_with("_v")) {
    half = kind.substr(kind.size() - 2);
    kind.resize(kind.size() - 2);
  }
  return expert.before + kind + std::to_string(*expert.number) + half;
}

std::string engine_name(const std::string& name, bool experts) {
  auto layer = layer_of(name);
  if (!layer) return name;
  if (layer->after == "input_layernorm.weight" || layer->after == "input_layernorm.bias")
    layer->after.replace(0, std::string_view("input_layernorm.").size(),
                         "self_attention.linear_qkv.layer_norm_");
  if (!experts && layer->after.starts_with(kNorm))
    layer->after.replace(0, kNorm.size(), kFusedNorm);
  return layer_name(*layer);
}

std::string norm_name(const std::string& name) {
  auto layer = layer_of(name);
  if (!layer || !layer->after.starts_with(kFusedNorm)) return name;
  layer->after.replace(0, kFusedNorm.size(), kNorm);
  return layer_name(*layer);
}

bool is_first_linear(std::string_view name) {
  const std::size_t at = name.find("mlp.");
  if (at == std::string_view::npos) return false;
  const std::size_t linear = name.find("linear_fc1.", at);
  if (linear == std::string_view::npos) return false;
  std::string_view kind = name.substr(linear + std::string_view("linear_fc1.").size());
  while (!kind.empty() && is_digit(kind.back())) kind.remove_suffix(1);
  return kind == "weight" || kind == "bias";
}

std::string second_linear(std::string_view name) {
  std::string out(name);
  const std::size_t at = out.find("linear_fc1.");
  if (at == std::string::npos) return out;
  out[at + std::string_view("linear_fc").size()] = '2';
  const std::size_t kind = at + std::string_view("linear_fc1.").size();
  if (out.compare(kind, 4, "bias") == 0) out.replace(kind, 4, "weight");
  return out;
}

}  // namespace fsdp::formats::megatron
