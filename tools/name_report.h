// SPDX-License-Identifier: Apache-2.0
// What a verb says of names it changed: old and new ones, and what was dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "formats/rewrite/rename.h"
#include "tools/writing.h"

namespace fsdp::cli {

// Names that are listed for people; --json lists all.
inline constexpr std::size_t kMaxNamesListed = 20;

// Adds `count` lines, line(i) each, and how many there are beyond kMaxNamesListed.
void list_names(std::size_t count, const std::function<std::string(std::size_t)>& line,
                std::vector<std::string>& lines);

// `auto_strip`: --strip-prefix auto was given.  `dry_run`: new names are listed for people too;
// what was dropped always is.
void add_name_report(const formats::Renamed& renamed, bool auto_strip, bool dry_run,
                     ReportExtras& extras);

}  // namespace fsdp::cli
