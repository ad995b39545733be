// SPDX-License-Identifier: Apache-2.0
// Files of settings and secrets, of which the first bytes are all.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace fsdp::formats {

// Returns the first `most` bytes of a file; nothing if there is none of that path.  Waits for
// nobody: a pipe is an error.
// Throws: kNotRegular; kAccess if it may not be read; kIo.  Messages begin with the path.
std::optional<std::string> read_small_file(const std::string& path, std::size_t most);

}  // namespace fsdp::formats
