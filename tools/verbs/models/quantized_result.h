// SPDX-License-Identifier: Apache-2.0
// A model with its weights quantized before it is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "tools/base/option_set.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

struct QuantizationOptions {
  std::string scheme;                 // empty: nothing is quantized
  std::string dialect;                // empty: compressed-tensors
  std::optional<std::int64_t> group;  // elements of a row that share a scale
  std::vector<std::string> skip;      // globs of modules that stay as they are
};

// Returns whether options are given that say how --quantize is done.
bool details_given(const QuantizationOptions& quantization);

void declare_quantization(OptionSet& options, QuantizationOptions& quantization);

// Quantizes a model, cast to `dtype` (empty: as it is), reports what stays as it is, and returns
// the quantization_config in `config`.
// Lifetime: `source` outlives the result.
// Throws: kUsage for globs that match no module; what quantized_model throws.
Changed quantized_result(const formats::Checkpoint& source, const formats::Value& tensors,
                         const QuantizationOptions& quantization, const std::string& dtype,
                         ReportExtras& extras, formats::Json& config);

}  // namespace fsdp::cli
