// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Settings that need no further check: those read below, and those about the adapter's modules, its
// origin and its training.  The matrices in the file tell the same, or a merge does not depend on
// the setting.
constexpr std::string_view kWithoutEffect[] = {"auto_mapping",
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
                                               "runtime_config",
                                               "lora_bias",
                                               "use_dora",
                                               "target_parameters",
                                               "trainable_token_indices",
                                               "velora_config"};

// Initial values of the matrices that leave the weights of the base as they are.
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

// Refuses numbers that float32, in which updates of weights are computed, cannot hold.
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
  throw Error(ErrorCode::kType, cat(quote(name), " must be an integer of at least 1"));
}

bool flag_of(const Json& root, std::string_view name) {
  const Json* const json = root.find(name);
  if (json == nullptr || json->is_null()) return false;
  if (json->as_bool() == nullptr)
    throw Error(ErrorCode::kType,
                cat(quote(name), " is ", json_kind(*json), ", expected a boolean"));
  return *json->as_bool();
}

template <typename Number, typename Parse>
std::vector<PatternNumber<Number>> pattern_of(const Json& root, const std::string& name,
                                              const Parse& parse) {
  std::vector<PatternNumber<Number>> patterns;
  const Json* const json = root.find(name);
  if (json == nullptr || is_off(*json)) return patterns;
  if (json->as_object() == nullptr)
    throw Error(ErrorCode::kType,
                cat(quote(name), " is ", json_kind(*json), ", expected an object"));
  for (const auto& [module, value] : *json->as_object())
    patterns.push_back({module, ModulePattern::parse(module), parse(name, value)});
  return patterns;
}

// Returns the text of a member; empty if it is not a text.
std::string text_in(const Json& root, std::string_view name) {
  const Json* const json = root.find(name);
  return json != nullptr && json->as_string() != nullptr ? *json->as_string() : std::string();
}

std::vector<std::string> names_in(const Json& root, const std::string& name) {
  std::vector<std::string> texts;
  const Json* const json = root.find(name);
  if (json == nullptr || is_off(*json)) return texts;
  const auto wrong = [&]() {
    return Error(ErrorCode::kType, cat(quote(name), " is not a list of names"));
  };
  if (json->as_array() == nullptr) throw wrong();
  for (const Json& text : *json->as_array()) {
    if (text.as_string() == nullptr) throw wrong();
    texts.push_back(*text.as_string());
  }
  return texts;
}

std::vector<std::uint64_t> rows_in(const std::string& name, const Json& json) {
  std::vector<std::uint64_t> rows;
  const auto wrong = [&]() {
    return Error(ErrorCode::kType, cat(quote(name), " is not a list of positions of tokens"));
  };
  if (json.as_array() == nullptr) throw wrong();
  for (const Json& row : *json.as_array()) {
    if (row.as_int() == nullptr || *row.as_int() < 0) throw wrong();
    rows.push_back(static_cast<std::uint64_t>(*row.as_int()));
  }
  return rows;
}

std::vector<TokenRows> tokens_of(const Json& root) {
  const std::string name = "trainable_token_indices";
  std::vector<TokenRows> tokens;
  const Json* const json = root.find(name);
  if (json == nullptr || is_off(*json)) return tokens;
  if (json->as_object() == nullptr) return {{"", rows_in(name, *json)}};
  for (const auto& [module, rows] : *json->as_object())
    tokens.push_back({module, rows_in(name, rows)});
  return tokens;
}

void check_settings(const Json& root) {
  const Json* const type = root.find("peft_type");
  if (type == nullptr || type->as_string() == nullptr)
    throw Error(ErrorCode::kType, "has no 'peft_type'; it is not the configuration of an adapter");
  if (*type->as_string() != "LORA") throw refused("peft_type", *type);
  for (const auto& [name, value] : *root.as_object()) {
    const bool known = std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), name) !=
                       std::end(kWithoutEffect);
    if (!known && !is_off(value)) throw refused(name, value);
  }
  const Json* const initial = root.find("init_lora_weights");
  if (initial != nullptr && initial->as_string() != nullptr &&
      std::ranges::find(kInitial, *initial->as_string()) == kInitial.end()) {
    throw Error(ErrorCode::kUnsupported,
                cat("'init_lora_weights' is ", quote(to_text(*initial), 80),
                    ": it changed the weights of the base before training, and the adapter does "
                    "not record the change; convert it to LoRA of the base as it was published, "
                    "with peft's save_pretrained(path_initial_model_for_weight_conversion=...)"));
  }
}

Json names_of(const std::vector<std::string>& modules) {
  Json::Array names;
  for (const std::string& module : modules) names.emplace_back(module);
  return names;
}

}  // namespace

std::optional<std::int64_t> AdapterConfig::rank_of(const std::string& module) const {
  for (const auto& own : ranks) {
    if (!own.pattern) return std::nullopt;
    if (own.pattern->matches(module)) return own.number;
  }
  return rank == 0 ? std::nullopt : std::optional(rank);
}

double AdapterConfig::alpha_of(const std::string& module) const {
  for (const auto& own : alphas) {
    if (own.pattern->matches(module)) return own.number;
  }
  return alpha;
}

double AdapterConfig::scale_of(const std::string& module, std::int64_t own_rank) const {
  const auto own = static_cast<double>(own_rank);
  return alpha_of(module) / (root_scale ? std::sqrt(own) : own);
}

bool AdapterConfig::saves(const std::string& module) const {
  for (const std::string& name : whole) {
    // The tensors of a module inside a saved module are the adapter's too.
    for (std::size_t end = module.size(); end != module.npos && end != 0;
         end = module.rfind('.', end - 1)) {
      const std::string_view outer = std::string_view(module).substr(0, end);
      if (outer == name || outer.ends_with("." + name)) return true;
    }
  }
  return false;
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
  for (const auto& own : config.alphas) {
    if (own.pattern) continue;
    throw Error(ErrorCode::kUnsupported, cat("'alpha_pattern' has ", quote(own.text, 200),
                                             ", a regular expression that is not supported"));
  }
  config.dora = flag_of(root, "use_dora");
  config.keeps_tied = flag_of(root, "ensure_weight_tying");
  config.task = text_in(root, "task_type");
  config.version = text_in(root, "peft_version");
  config.whole = names_in(root, "modules_to_save");
  config.parameters = names_in(root, "target_parameters");
  config.tokens = tokens_of(root);
  return config;
}

AdapterConfig parse_lora_meta(const std::string& text) {
  const Json root = parse_json(text);
  AdapterConfig config;
  const Json* const rank = root.find("r");
  const Json* const alpha = root.find("lora_alpha");
  if (rank == nullptr || alpha == nullptr)
    throw Error(ErrorCode::kType, "has no 'r' or no 'lora_alpha'");
  config.rank = rank_in("r", *rank);
  config.alpha = number_of("lora_alpha", *alpha);
  config.task = text_in(root, "task_type");
  return config;
}

std::string adapter_config_text(const AdapterConfig& config, const AdapterModules& modules) {
  const bool whole = config.alpha == std::floor(config.alpha) && std::abs(config.alpha) < 1e15;
  Json alpha = whole ? Json(static_cast<std::int64_t>(config.alpha)) : Json(config.alpha);
  const Json::Object root = {
      {"peft_type", "LORA"},
      {"task_type", config.task.empty() ? Json() : Json(config.task)},
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
