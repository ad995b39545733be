// SPDX-License-Identifier: Apache-2.0
// Tells a file that could not be read from a file that does not hold what was looked for.
//
// Code that tries whether a file is of some format takes an error as "no".  That is right for an
// error caused by the file's bytes, but wrong if the disk failed or memory ran out: the checkpoint
// would be taken for another one, or for a damaged one.
#pragma once

#include <filesystem>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// Returns whether an error of this code says nothing about what a file holds: reading failed, was
// interrupted, or found the file changing.
bool is_no_answer(ErrorCode code) noexcept;

// Returns whether something exists at `path`, without following a link; false if a folder on the
// way may not be searched, or a name is too long.
// Throws: kIo, kOutOfMemory if that cannot be determined; the errors of stores.
bool exists_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
