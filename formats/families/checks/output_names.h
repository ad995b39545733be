// SPDX-License-Identifier: Apache-2.0
// The last check of an output before it is committed: the names in its pickles.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace fsdp::formats {

// Scans every pickle of the finished `output` as bytes on the disk, as `inspect --globals` does
// (globals.h): whatever the writer did, the output cannot run code.  Storages count as data,
// whatever they hold.  `shown` is for messages.
// Throws: kGlobal naming file and name if a name is outside the exact list (plain_names.h) and not
// in `allowed`; the error of the first thing that could not be examined; kInterrupted.
void check_output_names(const std::filesystem::path& output, const std::string& shown,
                        const std::set<std::string>& allowed,
                        const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
