// SPDX-License-Identifier: Apache-2.0
// Parses the dtypes of --dtype.
#pragma once

#include <string>
#include <vector>

#include "formats/bytes/base/dtype.h"

namespace fsdp::cli {

// Returns the floating-point dtype that `word` names: by PyTorch's name, or as bf16, fp16, fp32 or
// fp64.
// Throws: kUsage for an unknown word and for a dtype that is not floating-point.
formats::DType floating_dtype(const std::string& word);

// Returns all those words.
std::vector<std::string> floating_words();

}  // namespace fsdp::cli
