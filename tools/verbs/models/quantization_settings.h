// SPDX-License-Identifier: Apache-2.0
// Where a model says how its weights are quantized.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/base/json.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::cli {

struct QuantizationAbout {
  formats::Json config;  // the quantization_config
  std::string name;      // of its file, for messages
};

// Returns the quantization_config of a model's configuration, else what hf_quant_config.json in the
// folder `path` says; nothing if neither is there.  `config` may be null.
// Throws: kJson; what reading throws.
std::optional<QuantizationAbout> quantization_about(const formats::Json* config,
                                                    const std::string& config_name,
                                                    const std::string& path);

}  // namespace fsdp::cli
