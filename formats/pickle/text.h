// SPDX-License-Identifier: Apache-2.0
// Which bytes pickle streams may have as text and as names.
#pragma once

#include <string_view>

namespace fsdp::formats {

bool is_ascii(std::string_view text) noexcept;

// Whether `text` is UTF-8 as Python pickles it: well formed, except that lone surrogates stand as
// three bytes each ("surrogatepass").
bool is_python_utf8(std::string_view text) noexcept;

// Whether `text` can be a module's name or the path of an attribute in it: well-formed UTF-8
// without control characters, in non-empty parts divided by dots.
bool is_global_name(std::string_view text);

// The module as protocol 2 spells it, which is as Python 2 had it: builtins is __builtin__.
std::string_view protocol_2_module(std::string_view module);

}  // namespace fsdp::formats
