// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint as safetensors: one file, or a folder of files with a Hugging Face index.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/families/safetensors/writer.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::safetensors {

// Plans an output for `content`, the result of content_of.  Lifetime: the source outlives the
// output.
// Throws: kUnsupported naming a key that is not a tensor (unless `drop_values`), and if no tensor
// is left; what Writer throws.
std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const OutputOptions& options, const WriterOptions& how,
                                    bool drop_values);

}  // namespace fsdp::formats::safetensors
