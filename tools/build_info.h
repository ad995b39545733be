// SPDX-License-Identifier: Apache-2.0
// Facts about this build, for --version.
#pragma once

#include <string>

namespace fsdp::cli {

// Returns the lines of --version, without the last line's end: name and version; commit, linking,
// processor and compiler; the libraries with the versions that this build was made with.
std::string version_text();

}  // namespace fsdp::cli
