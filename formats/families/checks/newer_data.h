// SPDX-License-Identifier: Apache-2.0
// Finds data files that were written after the `.metadata` beside them: left behind by an
// interrupted save into an old folder.  The parts of such a folder fit together but come from two
// saves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/state/model/finding.h"

namespace fsdp::formats {

// When a file was created and last written to, in nanoseconds since the epoch.
struct WrittenFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::optional<std::int64_t> born_ns;  // if the file system knows
};

// Note [newer data]
// A save writes `.metadata` last, so data are never newer.  A copy of a folder writes the files one
// after the other in any order: data may be newer, but each file begins when the one before it
// ends.  So a data file indicates another save if it was
// - written to in place: it existed before `.metadata` was finished, and was changed later, or
// - written afresh after a pause.
// How long it took to write a file is estimated from its size, to allow for copies by several
// processes at once.  Times that a copy preserved mean the same as in the original.
//
// Returns the names of the data files that are newer in this sense.
std::vector<std::string> newer_than(const WrittenFile& metadata, std::vector<WrittenFile> data);

// Returns a warning for each such file of the folder, and of the folders in it that have a
// `.metadata` of their own.  Skips files that cannot be examined: other checks report them.
Findings newer_data(const std::filesystem::path& folder);

}  // namespace fsdp::formats
