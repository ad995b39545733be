// SPDX-License-Identifier: Apache-2.0
// The record of files that a folder shares with another one by hard link: their state when they
// were linked.  A write into such a file under its other name changes both; the record makes that
// visible.  docs/formats/seal.md describes the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/file.h"

namespace fsdp::formats {

inline constexpr std::string_view kSharedName = "fsdp_shared.json";

struct SharedFile {
  std::string name;  // relative to the folder
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;
  std::int64_t born_ns = 0;  // 0: unknown to the file system; detects a reused inode number
};

// Returns the present state of the file.  Throws: kIo.
SharedFile shared_file(std::string name, const File& file);

// Returns the text of a record.  Throws: kName for a name that is not UTF-8.
std::string shared_text(const std::vector<SharedFile>& files);

// Reads a record.  Throws: kSeal, kLimitSize.
std::vector<SharedFile> read_shared(const File& file);

// Returns whether the file is still the one that was linked, rather than a copy of it or another
// file.
bool is_still_shared(const SharedFile& then, const SharedFile& now);

}  // namespace fsdp::formats
