// SPDX-License-Identifier: Apache-2.0
// Compares the quantized weights in a model's folder with its configuration, for verify.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/finding.h"
#include "tools/base/common.h"

namespace fsdp::cli {

struct QuantizationCheck {
  formats::Findings findings;
  std::vector<std::string> lines;  // what was compared, for users
  formats::Json json;              // the same for --json
};

// Looks at the config.json, or hf_quant_config.json, of the folder `path`, or of that of a file
// that holds a whole model; `checkpoint` was opened from there.  Returns nothing for a model that
// is not quantized, and for other files.
// `values`: of scales, too.  `numbers`: NaN among FP8 weights, too, which reads these.
// A method that is not known is a line, not a finding.
// Throws: what reading throws.
std::optional<QuantizationCheck> check_quantization(const formats::Checkpoint& checkpoint,
                                                    const std::string& path, bool values,
                                                    bool numbers, const CommonOptions& common);

}  // namespace fsdp::cli
