// SPDX-License-Identifier: Apache-2.0
// Fits text into the columns of a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::cli {

// The columns that UTF-8 text takes: its code points, less sequences that set a colour.
std::size_t width_of(std::string_view text);

// `text` in at most `width` columns; an ellipsis stands for its end, or for a part within it that
// holds no number.
std::string cut_end(const std::string& text, std::size_t width);
std::string cut_within(const std::string& text, std::size_t width);

// `pieces` with `gap` between them, in lines of at most `columns`; a piece stays whole, even where
// it is wider.  Lines but the first begin with `indent` blanks.  0 columns: one line.
std::string packed(const std::vector<std::string>& pieces, std::string_view gap,
                   std::size_t columns, std::size_t indent);

// `lead` and the words of `text` behind it, broken at blanks of `text` in the same way.
std::string hanging(std::string_view lead, std::string_view text, std::size_t columns,
                    std::size_t indent);

// `text`, broken at its blanks; those in front stay.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent = 2);

}  // namespace fsdp::cli
