// SPDX-License-Identifier: Apache-2.0
// Texts and JSON of values from checkpoints.
#pragma once

#include <cstddef>
#include <string>

#include "formats/bytes/base/json.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::cli {

// Returns the Python type, as far as known: "int", "list", "torch.Size", "sparse tensor".
std::string type_name(const formats::Value& value);

// Returns the text of Python's repr with control characters escaped, cut after about `limit`
// characters.
std::string value_text(const formats::Value& value, std::size_t limit);

// Returns null, booleans, numbers, texts, and lists, tuples and dicts of them as JSON; integers
// outside 64 bits and values without a JSON counterpart as in value_text.  Values of more than
// 10,000 parts are cut.
formats::Json value_json(const formats::Value& value);

// Returns the text as JSON; null if it is empty.
formats::Json text_or_null(const std::string& text);

}  // namespace fsdp::cli
