// SPDX-License-Identifier: Apache-2.0
// Checks bytes that pickle streams may have as text and as names.
#pragma once

#include <string_view>

namespace fsdp::formats {

bool is_ascii(std::string_view text) noexcept;

// Returns whether `text` is UTF-8 as Python pickles it: well formed, except that lone surrogates
// are three bytes each ("surrogatepass").
bool is_python_utf8(std::string_view text) noexcept;

// Returns whether `text` can be a module's name or the path of an attribute in it: well-formed
// UTF-8 without control characters, in non-empty parts divided by dots.
bool is_global_name(std::string_view text);

// Returns the module as protocol 2 spells it, with Python 2's names: builtins is __builtin__.
std::string_view protocol_2_module(std::string_view module);

}  // namespace fsdp::formats
