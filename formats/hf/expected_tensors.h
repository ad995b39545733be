// SPDX-License-Identifier: Apache-2.0
// The tensors of a class for one configuration, made of the patterns of architecture data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/json.h"
#include "formats/hf/config_values.h"

namespace fsdp::formats::hf {

struct ExpectedTensor {
  // Sizes that are not known are -1.  Nothing: the rank is not known either.
  std::optional<std::vector<std::int64_t>> shape;
  bool required = true;  // else it may be missing: the configuration does not tell
};

// The tensors of one layout, by the entries of the data.  Lifetime: the arguments outlive it.
class ExpectedTensors {
 public:
  ExpectedTensors(const ConfigValues& values, std::map<std::string, ExpectedTensor>& out)
      : values_(values), out_(out) {}

  // Adds those of a pattern.  `tail`: [conditions or null, ranges or null, sizes or null, may be
  // missing].
  // Throws: kLimitNodes if the configuration asks for more tensors than any model has.
  void add(const std::string& pattern, const Json::Array& tail);

  // Patterns whose numbers the configuration does not tell.
  const std::map<std::string, ExpectedTensor>& any() const { return any_; }

 private:
  const ConfigValues& values_;
  std::map<std::string, ExpectedTensor>& out_;
  std::map<std::string, ExpectedTensor> any_;
};

}  // namespace fsdp::formats::hf
