// SPDX-License-Identifier: Apache-2.0
#include "formats/lora/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// Settings that say which modules an adapter has, where it comes from and how it was trained: the
// matrices in the file tell the same, or they do not change what merging computes.
constexpr std::array<std::string_view, 30> kWithoutEffect = {"auto_mapping",
                                                             "base_model_name_or_path",
                                                             "bias",
                                                             "corda_config",
                                                             "ensure_weight_tying",
                                                             "eva_config",
                                                             "exclude_modules",
                                                             "inference_mode",
                                                             "layers_pattern",
                                                             "layers_to_transform",
                                                             "loftq_config",
                                                             "lora_dropout",
                                                             "lora_ga_config",
                                                             "megatron_config",
                                                             "megatron_core",
                                                             "modules_to_save",
                                                             "peft_version",
                                                             "qalora_group_size",
                                                             "revision",
                                                             "target_modules",
                                                             "task_type",
                                                             "peft_type",
                                                             "r",
                                                             "lora_alpha",
                                                             "use_rslora",
                                                             "fan_in_fan_out",
                                                             "rank_pattern",
                                                             "alpha_pattern",
                                                             "init_lora_weights",
                                                             "runtime_config"};

// First values of the matrices that leave the weights of the base as they are.
constexpr std::array<std::string_view, 3> kInitial = {"gaussian", "eva", "orthogonal"};

bool is_off(const Json& json) {
  if (json.as_bool() != nullptr) return !*json.as_bool();
  if (json.as_string() != nullptr) return json.as_string()->empty();
  if (json.as_array() != nullptr) return json.as_array()->empty();
  if (json.as_object() != nullptr) return json.as_object()->empty();
  if (json.as_int() != nullptr) return *json.as_int() == 0;
  return json.is_null();
}

Error refused(const std::string& name, const Json& value) {
  const std::string text = to_text(value);
  return Error(ErrorCode::kUnsupported,
               cat(quote(name), " is ", quote(text, 80), ", which is not merged"));
}

// Updates of weights are computed in float32.
double number_of(const std::string& name, const Json& json) {
  if (json.as_int() != nullptr) return static_cast<double>(*json.as_int());
  if (const auto* number = std::get_if<double>(&json.storage())) {
    if (std::abs(*number) <= std::numeric_limits<float>::max()) return *number;
    throw Error(ErrorCode::kType, cat(quote(name), " is too large for float32"));
  }
  throw Error(ErrorCode::kType, cat(quote(name), " is ", json_kind(json), ", expected a number"));
}

std::int64_t rank_in(const std::string& name, const Json& json) {
  const std::int64_t* const rank = json.as_int();
  if (rank != nullptr && *rank >= 1) return *rank;
  throw Error(ErrorCode::kType, cat(quote(name), " is no rank: a whole number from 1 on"));
}

bool flag_of(const Json& root, std::string_view name) {
  const Json* const json = root.find(name);
  if (json == nullptr || json->is_null()) return false;
  if (json->as_bool() == nullptr)
    throw Error(ErrorCode::kType,
                cat(quote(name), " is ", json_kind(*json), ", expected a boolean"));
  return *json->as_bool();
}

// peft takes these names for regular expressions.
void check_name(const std::string& setting, const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (plain) return;
  throw Error(ErrorCode::kUnsupported, cat(quote(setting), " has ", quote(name, 200),
                                           ", a pattern; only names of modules are read"));
}

template <typename Number, typename Parse>
std::vector<std::pair<std::string, Number>> pattern_of(const Json& root, const std::string& name,
                                                       const Parse& parse) {
  std::vector<std::pair<std::string, Number>> pattern;
  const Json* const json = root.find(name);
  if (json == nullptr || is_off(*json)) return pattern;
  if (json->as_object() == nullptr)
    throw Error(ErrorCode::kType,
                cat(quote(name), " is ", json_kind(*json), ", expected an object"));
  for (const auto& [module, value] : *json->as_object()) {
    check_name(name, module);
    pattern.emplace_back(module, parse(name, value));
  }
  return pattern;
}

template <typename Number>
Number choose(const std::vector<std::pair<std::string, Number>>& pattern, const std::string& module,
              Number otherwise) {
  for (const auto& [name, number] : pattern) {
    if (module == name || module.ends_with("." + name)) return number;
  }
  return otherwise;
}

void check_settings(const Json& root) {
  const Json* const type = root.find("peft_type");
  if (type == nullptr || type->as_string() == nullptr)
    throw Error(ErrorCode::kType, "has no 'peft_type'; it is no adapter's configuration");
  if (*type->as_string() != "LORA") throw refused("peft_type", *type);
  for (const auto& [name, value] : *root.as_object()) {
    const bool known =
        std::find(kWithoutEffect.begin(), kWithoutEffect.end(), name) != kWithoutEffect.end();
    if (!known && !is_off(value)) throw refused(name, value);
  }
  const Json* const initial = root.find("init_lora_weights");
  if (initial != nullptr && initial->as_string() != nullptr &&
      std::find(kInitial.begin(), kInitial.end(), *initial->as_string()) == kInitial.end()) {
    throw refused("init_lora_weights", *initial);
  }
}

Json names_of(const std::vector<std::string>& modules) {
  Json::Array names;
  for (const std::string& module : modules) names.emplace_back(module);
  return names;
}

}  // namespace

std::int64_t AdapterConfig::rank_of(const std::string& module) const {
  return choose(ranks, module, rank);
}

double AdapterConfig::alpha_of(const std::string& module) const {
  return choose(alphas, module, alpha);
}

double AdapterConfig::scale_of(const std::string& module) const {
  const auto own = static_cast<double>(rank_of(module));
  return alpha_of(module) / (root_scale ? std::sqrt(own) : own);
}

AdapterConfig parse_adapter_config(const std::string& text) {
  const Json root = parse_json(text);
  if (root.as_object() == nullptr)
    throw Error(ErrorCode::kType, cat("is ", json_kind(root), ", expected an object"));
  check_settings(root);
  AdapterConfig config;
  const auto member = [&](std::string_view name) -> const Json& {
    const Json* const json = root.find(name);
    if (json == nullptr) throw Error(ErrorCode::kType, cat("has no ", quote(name)));
    return *json;
  };
  config.rank = rank_in("r", member("r"));
  config.alpha = number_of("lora_alpha", member("lora_alpha"));
  config.root_scale = flag_of(root, "use_rslora");
  config.fan_in_fan_out = flag_of(root, "fan_in_fan_out");
  config.ranks = pattern_of<std::int64_t>(root, "rank_pattern", rank_in);
  config.alphas = pattern_of<double>(root, "alpha_pattern", number_of);
  return config;
}

std::string adapter_config_text(const AdapterConfig& config, const AdapterModules& modules) {
  const bool whole = config.alpha == std::floor(config.alpha) && std::abs(config.alpha) < 1e15;
  Json alpha = whole ? Json(static_cast<std::int64_t>(config.alpha)) : Json(config.alpha);
  const Json::Object root = {
      {"peft_type", "LORA"},
      {"task_type", nullptr},
      {"base_model_name_or_path", nullptr},
      {"inference_mode", true},
      {"r", config.rank},
      {"lora_alpha", std::move(alpha)},
      {"lora_dropout", 0.0},
      {"target_modules", names_of(modules.targets)},
      {"modules_to_save", modules.whole.empty() ? Json() : names_of(modules.whole)},
      {"bias", modules.biases ? "all" : "none"},
      {"fan_in_fan_out", config.fan_in_fan_out},
      {"use_rslora", config.root_scale},
      {"init_lora_weights", true}};
  return to_text(root, 2) + "\n";
}

}  // namespace fsdp::formats
