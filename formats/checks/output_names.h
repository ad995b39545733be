// SPDX-License-Identifier: Apache-2.0
// The last look at an output before it is committed: the names in its pickles.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace fsdp::formats {

// Scans every pickle of the finished `output`, as bytes on the disk, as `inspect --globals` does
// (globals.h): whatever the writer believed, what was written cannot run code.  `shown` stands in
// messages.  Storages are data, whatever they hold.
// Throws: kGlobal naming file and name where one is outside the exact list (plain_names.h) and not
// in `allowed`; the first reason why something could not be looked into; kInterrupted.
void check_output_names(const std::filesystem::path& output, const std::string& shown,
                        const std::set<std::string>& allowed,
                        const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
