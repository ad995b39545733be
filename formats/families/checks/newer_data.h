// SPDX-License-Identifier: Apache-2.0
// Data files that were written after the `.metadata` beside them: left behind by an interrupted
// save into an old folder, whose parts fit together but do not come from one save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/model/finding.h"

namespace fsdp::formats {

// The times when a file was created and last written to, in nanoseconds since the epoch.
struct WrittenFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::optional<std::int64_t> born_ns;  // if the file system knows
};

// Note [newer data]
// A save writes `.metadata` last, so that data are never newer.  A copy of a folder writes one file
// after the other in any order; data may well be newer, but each file begins when the one before it
// ends.  So a data file indicates another save if it was
// - written to in place: it was there before `.metadata` was finished, and was changed later, or
// - written afresh after a pause.
// The time that writing a file may have taken is estimated from its size, to allow for copies by
// several processes at once.  Times that a copy preserved from the original mean the same as in the
// original.
//
// Returns the names of the data files that are newer in this sense.
std::vector<std::string> newer_than(const WrittenFile& metadata, std::vector<WrittenFile> data);

// A warning for each such file of the folder, and of the folders in it that have a `.metadata` of
// their own.  Files that cannot be examined are skipped: other checks report them.
Findings newer_data(const std::filesystem::path& folder);

}  // namespace fsdp::formats
