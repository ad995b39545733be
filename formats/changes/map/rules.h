// SPDX-License-Identifier: Apache-2.0
// The rules of a map, read from a file and checked for what can be known without a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/map/operation.h"
#include "formats/changes/map/pattern.h"

namespace fsdp::formats::map {

// The sources of a parameter's value if the user does not give it: the first one that is present
// counts.
struct Parameter {
  std::uint64_t line = 0;
  std::string name;
  std::vector<std::string> config;  // names in config.json, a dot for each level
  std::optional<Pattern> key;       // dimension `dim` of a tensor that matches
  std::int64_t dim = 0;
  std::vector<Pattern> count;  // how many names match one of them
  std::optional<Expression> value;
};

// Source tensors become target tensors through a chain of operations.
struct Rule {
  std::uint64_t line = 0;
  std::vector<Pattern> from;
  std::vector<Pattern> to;  // empty: dropped
  // The capture that stands for 0, 1, 2, ... in all patterns of one side: tensors of one pattern
  // are gathered, or made, together.
  std::string over;
  bool optional = false;  // need not match
  // Tensors of the first pattern that come without all of the others are left to the next rules.
  bool skip_lone = false;
  // Names that must be there with the same captures; otherwise a tensor is left to the next rules.
  std::vector<Pattern> beside;
  std::vector<Operation> operations;
  bool collects() const { return !over.empty() && from[0].names().contains(over); }
  bool spreads() const { return !over.empty() && !collects(); }
};

struct Rules {
  std::string file;                      // for messages
  std::string description;               // "torchtitan's Llama 3 to transformers"; may be empty
  std::vector<std::string> versions;     // of the code it was tried with, "torchtitan 0.3"
  std::vector<std::string> model_types;  // `model_type` of config.json that the rules are for
  // Models of other types have names that the map takes: names alone do not choose it.
  bool needs_config = false;
  // Megatron-Core reads each layer of these models by itself, though all have the same tensors.
  bool layers_apart = false;
  std::vector<Parameter> parameters;
  std::vector<Rule> rules;
  // Parameters that are one in an optimizer and several in the model; only forward.
  std::vector<Rule> fused;
  // Throws: kUsage naming the parameter and the nearest.
  const Parameter& parameter(const std::string& name) const;
  // Sets the parameters that are added to captures.  Throws: kUsage for one
  // below 0 or above Pattern::kMaxOffset; what `value` throws.
  void set_offsets(const ParameterValue& value);
};

enum class Direction { kForward, kReverse };

// Parses a rule file.  With kReverse the rules lead back: sources and targets change places and
// operations are undone in the opposite order; rules for one direction only are left out in the
// other.
// Throws: `file` and line in front: kUsage for unknown members, captures that are missing on one
// side, ...; kUnsupported for an operation that has no inverse; what parse_rule_node throws.
Rules parse_rules(std::string_view text, const std::string& file, Direction direction);

}  // namespace fsdp::formats::map
