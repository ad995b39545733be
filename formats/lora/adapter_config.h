// SPDX-License-Identifier: Apache-2.0
// adapter_config.json: how the matrices of a LoRA adapter are meant.
// Source: peft 0.21's LoraConfig and LoraLayer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/base/json.h"

namespace fsdp::formats {

struct AdapterConfig {
  std::int64_t rank = 0;
  double alpha = 0;
  bool root_scale = false;      // use_rslora: alpha / sqrt(rank), else alpha / rank
  bool fan_in_fan_out = false;  // weights are [in, out]
  // Names of modules, or ends of names, with ranks and alphas of their own; the first that fits.
  std::vector<std::pair<std::string, std::int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;

  std::int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  // Of a module's update.
  double scale_of(const std::string& module) const;
};

// Throws: kUnsupported naming the setting, for adapters of other kinds than LoRA, for variants such
// as DoRA, for first values that change the base's weights (PiSSA, LoftQ, ...), for patterns that
// are more than names, and for settings that are not known and are on; kType, kJson.
AdapterConfig parse_adapter_config(const std::string& text);

// What an adapter changes, by the names of modules in the base.
struct AdapterModules {
  std::vector<std::string> targets;  // have matrices
  std::vector<std::string> whole;    // are held whole
  bool biases = false;               // it holds biases beside them
};

// Returns the text of an adapter_config.json.  Ranks and alphas are the same for all modules.
std::string adapter_config_text(const AdapterConfig& config, const AdapterModules& modules);

}  // namespace fsdp::formats
