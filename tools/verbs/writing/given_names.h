// SPDX-License-Identifier: Apache-2.0
// --names: the names of parameters, in their order.
#pragma once

#include <string>

#include "formats/state/rewrite/parameter_order.h"

namespace fsdp::cli {

// Reads one name per line, or a JSON list.  Throws, with the path: kEmpty, kJson, kUtf8; what
// reading throws.
formats::ParameterOrder read_names(const std::string& path);

}  // namespace fsdp::cli
