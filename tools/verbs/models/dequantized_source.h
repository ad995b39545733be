// SPDX-License-Identifier: Apache-2.0
// A Hugging Face model with quantized weights, dequantized before anything else looks at it.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/base/dtype.h"
#include "formats/families/hf/companions.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

// Returns the floating dtype that a configuration names, of the model or of its text part.
std::optional<formats::DType> configured_dtype(const formats::hf::Companions& companions);

// Dequantizes the model of `content` at `place` (empty: the only one) by the quantization_config of
// the configuration, else by the hf_quant_config.json in the folder `path`; reports schemes and
// what is left out.  `dtype`: of the weights; empty: that of the configuration, else bfloat16.
// Removes the quantization from the configuration.
// Lifetime: `source` outlives the result.
// Throws: kUsage if nothing says how weights are quantized; what find_model and dequantized_model
// throw.
Changed dequantized_source(const formats::Checkpoint& source, const formats::Value& content,
                           const std::string& path, const std::string& place,
                           const std::string& dtype, formats::hf::Companions& companions,
                           ReportExtras& extras);

}  // namespace fsdp::cli
