// SPDX-License-Identifier: Apache-2.0
// A verb's report of changed names: old and new ones, and dropped ones.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "formats/state/rewrite/rename.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

// The most names listed for users; --json lists all.
inline constexpr std::size_t kMaxNamesListed = 20;

// Adds `count` lines, line(i) each; beyond kMaxNamesListed only their number.
void list_names(std::size_t count, const std::function<std::string(std::size_t)>& line,
                std::vector<std::string>& lines);

// Adds what each rule applied to, and the changed names.  `auto_strip`: --strip-prefix auto was
// given.  `dry_run`: new names are listed for users too; dropped names always are.
void add_name_report(const formats::Renamed& renamed, bool auto_strip, bool dry_run,
                     ReportExtras& extras);

}  // namespace fsdp::cli
