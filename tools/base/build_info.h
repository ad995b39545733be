// SPDX-License-Identifier: Apache-2.0
// Facts about this build, for --version.
#pragma once

#include <string>

namespace fsdp::cli {

// Returns the lines of --version, without a final newline: name and version; commit, linking,
// processor and compiler; the libraries and their versions in this build.
std::string version_text();

}  // namespace fsdp::cli
