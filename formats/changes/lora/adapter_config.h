// SPDX-License-Identifier: Apache-2.0
// adapter_config.json: the settings of a LoRA adapter that give its matrices their meaning.
// Source: peft 0.21's LoraConfig and LoraLayer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/lora/module_pattern.h"

namespace fsdp::formats {

// A number for the modules that a pattern matches.
template <typename Number>
struct PatternNumber {
  std::string text;
  std::optional<ModulePattern> pattern;  // nothing if it is not understood
  Number number;
};

// Rows of an embedding that were trained.
struct TokenRows {
  std::string module;  // its name or the end of its name; empty: the model's input embedding
  std::vector<std::uint64_t> rows;
};

struct AdapterConfig {
  std::int64_t rank = 0;  // 0: that of the matrices
  double alpha = 0;
  bool root_scale = false;      // use_rslora: alpha / sqrt(rank), else alpha / rank
  bool fan_in_fan_out = false;  // weights are [in, out]; peft goes by the kind of module instead
  bool dora = false;
  bool keeps_tied = false;  // ensure_weight_tying
  std::string task;         // "CAUSAL_LM"; empty if it is not known
  std::string version;      // of the peft that wrote it, "0.19.1"; empty before 0.18
  // The first pattern that fits a module counts.
  std::vector<PatternNumber<std::int64_t>> ranks;
  std::vector<PatternNumber<double>> alphas;  // all are understood
  std::vector<std::string> whole;             // modules_to_save
  std::vector<std::string> parameters;        // target_parameters
  std::vector<TokenRows> tokens;              // trainable_token_indices

  // Returns nothing if a pattern that is not understood may decide, or if the rank is that of the
  // matrices.
  std::optional<std::int64_t> rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  // Returns the factor of the update of a module whose matrices have the rank `own_rank`.
  double scale_of(const std::string& module, std::int64_t own_rank) const;
  // Returns whether the module is one that the adapter trains as a whole.
  bool saves(const std::string& module) const;
};

// Throws: kUnsupported, naming the setting: for adapters that are not LoRA, for variants that
// cannot be merged, for initial values that change the base's weights (PiSSA, LoftQ, ...), for
// patterns of alphas that are not understood, and for unknown settings that are on; kType, kJson.
AdapterConfig parse_adapter_config(const std::string& text);

// Reads verl's lora_train_meta.json: r, lora_alpha and task_type.  Throws: kType, kJson.
AdapterConfig parse_lora_meta(const std::string& text);

// What an adapter changes, as names of modules in the base.
struct AdapterModules {
  std::vector<std::string> targets;  // have matrices
  std::vector<std::string> whole;    // are held whole
  bool biases = false;               // it holds biases beside them
};

// Returns the text of an adapter_config.json.  Ranks and alphas are the same for all modules.
std::string adapter_config_text(const AdapterConfig& config, const AdapterModules& modules);

}  // namespace fsdp::formats
