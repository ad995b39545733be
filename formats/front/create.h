// SPDX-License-Identifier: Apache-2.0
// The front door for writing: plans an output of any format.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "formats/families/runs/formats.h"

namespace fsdp::formats {

// Returns the word of --to by the suffix of `destination`: "pt", "safetensors", "hdf5".
// Throws: kUsage.
std::string format_from_suffix(const std::filesystem::path& destination);

// Plans an output of `content`, which content_of returned, edited or not.  `format`: a word of the
// table (OutputFormat).  Lifetime: the source outlives the output.  Throws: kUnsupported if the
// format cannot hold the content (values in safetensors, a dtype), naming a key and what to do;
// kUsage for options that the format lacks.
std::unique_ptr<Output> plan_output(const std::string& format, const Checkpoint& source,
                                    const Value& content, const std::filesystem::path& destination,
                                    const CreateOptions& options);

}  // namespace fsdp::formats
