// SPDX-License-Identifier: Apache-2.0
// Reads small files, of settings and secrets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace fsdp::formats {

// Returns the first `most` bytes of a file; nothing if there is no file at the path.  Never waits:
// a pipe is an error.
// Throws: kNotRegular; kAccess if the file may not be read; kIo.  Messages begin with the path.
std::optional<std::string> read_small_file(const std::string& path, std::size_t most);

}  // namespace fsdp::formats
