// SPDX-License-Identifier: Apache-2.0
// Fits text into the columns of a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::cli {

// Returns the columns that UTF-8 text takes: its code points, except sequences that set a colour.
std::size_t width_of(std::string_view text);

// Returns `text` in at most `width` columns; an ellipsis replaces its end, or an inner part without
// numbers.
std::string cut_end(const std::string& text, std::size_t width);
std::string cut_within(const std::string& text, std::size_t width);

// Returns `pieces` with `gap` between them, in lines of at most `columns`.  A piece is never split,
// even if it is wider.  Lines after the first begin with `indent` blanks.  0 columns: one line.
std::string packed(const std::vector<std::string>& pieces, std::string_view gap,
                   std::size_t columns, std::size_t indent);

// Returns `lead` and the words of `text` after it, broken in the same way at the blanks of `text`.
std::string hanging(std::string_view lead, std::string_view text, std::size_t columns,
                    std::size_t indent);

// Returns `text`, broken at its blanks; leading blanks stay.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent = 2);

}  // namespace fsdp::cli
