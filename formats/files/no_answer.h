// SPDX-License-Identifier: Apache-2.0
// "It could not be read" is no answer to "what does it hold?".
//
// Code that tries whether a file is of some format takes an error for a no.  That is right for an
// error that the file's bytes made, and wrong for a disk that failed or memory that was short: the
// checkpoint would be taken for another one, or for a damaged one.
#pragma once

#include <filesystem>

#include "formats/base/error.h"

namespace fsdp::formats {

// Whether an error of this code says nothing about what a file holds: reading failed, was
// interrupted, or found the file changing.
bool is_no_answer(ErrorCode code) noexcept;

// Whether something stands at `path`, a link not being followed; nothing does where a folder on the
// way there may not be searched, or a name is too long to be one.
// Throws: kIo, kOutOfMemory where nobody can tell.
bool exists_at(const std::filesystem::path& path);

}  // namespace fsdp::formats
