// SPDX-License-Identifier: Apache-2.0
// The values of a map's parameters: from the user, a config.json, the shapes of tensors, or the
// map itself, in this order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/changes/map/rules.h"

namespace fsdp::formats::map {

struct GivenParameters {
  std::map<std::string, std::int64_t> values;
  std::optional<Json> config;
  std::string config_name;  // for messages
};

// Parses "n_heads=32".  Throws: kUsage.
std::pair<std::string, std::int64_t> parse_parameter(std::string_view text);

class ParameterValues {
 public:
  using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
  // Lifetime: rules, given and shapes outlive it.
  // Throws: kUsage for a given parameter that the map does not have; kKey for a config of another
  // `model_type`.
  ParameterValues(const Rules& rules, const GivenParameters& given, const Shapes& shapes);
  // Throws: kUsage if no source gives the value, naming the sources; kMismatch if the config says
  // another number than names that are counted; kKey, kShape, kJson.
  std::int64_t operator()(const std::string& name);
  // The values asked for so far, by name.
  const std::map<std::string, std::int64_t>& known() const { return known_; }

 private:
  std::optional<std::int64_t> from_config(const Parameter& parameter) const;
  std::optional<std::int64_t> from_names(const Parameter& parameter) const;
  void compare_with_names(const Parameter& parameter, std::int64_t said);
  std::optional<std::int64_t> from_shapes(const Parameter& parameter) const;
  std::int64_t found(const Parameter& parameter);
  std::string place(const Parameter& parameter) const;

  const Rules& rules_;
  const GivenParameters& given_;
  const Shapes& shapes_;
  std::map<std::string, std::int64_t> known_;
  std::set<std::string> open_;
};

}  // namespace fsdp::formats::map
