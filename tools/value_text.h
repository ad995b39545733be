// SPDX-License-Identifier: Apache-2.0
// Values from checkpoints for people and for JSON.
#pragma once

#include <cstddef>
#include <string>

#include "formats/base/json.h"
#include "formats/pickle/value.h"

namespace fsdp::cli {

// "int", "list", "torch.Size", "sparse tensor": the Python type, as far as it is known.
std::string type_name(const formats::Value& value);

// As Python's repr shows it, control characters escaped, cut after about `limit` characters.
std::string value_text(const formats::Value& value, std::size_t limit);

// null, booleans, numbers, texts, and lists, tuples and dicts of them as JSON; integers outside 64
// bits and what has no JSON counterpart as value_text.  Cut where it holds more than 10,000 parts.
formats::Json value_json(const formats::Value& value);

}  // namespace fsdp::cli
