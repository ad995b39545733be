// SPDX-License-Identifier: Apache-2.0
// The dtypes that --dtype understands.
#pragma once

#include <string>

#include "formats/bytes/base/dtype.h"

namespace fsdp::cli {

// Returns the floating-point dtype that `word` names: PyTorch's name of it, or one of the short
// forms bf16, fp16, fp32 and fp64.
// Throws: kUsage for an unknown word and for a dtype that is not floating-point.
formats::DType floating_dtype(const std::string& word);

}  // namespace fsdp::cli
