// SPDX-License-Identifier: Apache-2.0
// Data files that were written after the `.metadata` beside them: what an interrupted save into an
// old folder leaves behind, in which everything fits together but is not of one save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model/finding.h"

namespace fsdp::formats {

// When a file came to be and was last written to, in nanoseconds since the epoch.
struct WrittenFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::optional<std::int64_t> born_ns;  // where the file system knows
};

// Note [newer data]
// Whoever saves writes `.metadata` last, so that data are never newer.  Whoever copies a folder
// writes one file after the other in any order, and data may well be newer, but each begins where
// the one before ends.  So a data file speaks of another save where it was
// - written to in place: it was there before `.metadata` was finished, and was changed later, or
// - written afresh after a pause.
// How long writing a file may have taken is estimated by its size, for copies by several processes
// at once.  Times that a copy took over from the original tell what they would tell there.
//
// Names of the data files of which that is so.
std::vector<std::string> newer_than(const WrittenFile& metadata, std::vector<WrittenFile> data);

// A warning for each such file of the folder, and of the folders in it that have a `.metadata` of
// their own.  What cannot be looked at is passed over: others say so.
Findings newer_data(const std::filesystem::path& folder);

}  // namespace fsdp::formats
