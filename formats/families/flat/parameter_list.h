// SPDX-License-Identifier: Apache-2.0
// The names and shapes of a model's parameters in the order of its state dict, which files of
// flat parameters lack.  docs/formats/fsdp1_local.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats::flat {

struct ListedParameter {
  std::string name;
  std::vector<std::int64_t> shape = {};
  // The dimensions in the order of memory, the outermost first; empty: row-major.  FSDP flattens a
  // tensor in the order of its memory.
  std::vector<std::size_t> memory_order = {};
  std::string tied = {};  // the listed name whose elements it shares; empty: it has its own
};

struct ParameterList {
  std::string origin;  // its source, for messages: "model.pt"
  // Whether the names are in the order of the module's state dict.  Files that name the parts of
  // parameters (use_orig_params=True) tell the order themselves.
  bool ordered = true;
  mutable bool used = false;                // set when flat parameters are divided by it
  std::vector<ListedParameter> parameters;  // buffers may be among them
};

// Parses a JSON object: names to shapes ([3, 4]), to objects with a member "shape", as a
// safetensors header has them, or to the earlier name that a tied parameter shares its elements
// with. Throws: kJson, kShape, kKey; what parse_json throws.
ParameterList parse_parameter_list(std::string_view json, std::string origin);

}  // namespace fsdp::formats::flat
