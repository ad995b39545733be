// SPDX-License-Identifier: Apache-2.0
// The data of all model types, compiled in.
#pragma once

#include <optional>
#include <string_view>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::hf {

// Returns the data of a model type; nothing if there are none.  The members are those that
// tests/interop/architectures/pack.py writes.
std::optional<Json> architecture_data(std::string_view model_type);

// Returns the first line of the data: their version, "transformers 5.24.0".
std::string_view architecture_producer();

}  // namespace fsdp::formats::hf
