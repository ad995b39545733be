// SPDX-License-Identifier: Apache-2.0
// Expands the patterns of architecture data into the tensors of a class for one configuration.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/hf/config_values.h"
#include "formats/families/hf/open_patterns.h"

namespace fsdp::formats::hf {

struct ExpectedTensor {
  // Sizes that are not known are -1.  Nothing: the rank is not known either.
  std::optional<std::vector<std::int64_t>> shape;
  bool required = true;  // false: may be missing, the configuration does not tell
  // Tensors of one company are all present or all absent; empty: no company.
  std::string company;
};

// Collects the tensors of one layout.  Lifetime: the arguments outlive the object.
class ExpectedTensors {
 public:
  ExpectedTensors(const ConfigValues& values, std::map<std::string, ExpectedTensor>& out)
      : values_(values), out_(out) {}

  // Adds the tensors of a pattern.  `tail`: [conditions or null, ranges or null, sizes or null, may
  // be missing, group].  Tensors of one group that have the same numbers form a company.
  // Throws: kLimitNodes if the configuration asks for more tensors than any model has.
  void add(const std::string& pattern, const Json::Array& tail);

  // Patterns whose numbers the configuration does not tell.
  const OpenPatterns& open() const { return open_; }

 private:
  const ConfigValues& values_;
  std::map<std::string, ExpectedTensor>& out_;
  OpenPatterns open_;
};

}  // namespace fsdp::formats::hf
