// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint as one torch.save file.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/content/output.h"

namespace fsdp::formats {

// Plans an output for `content`, the result of content_of.  Content of a torch.save file keeps its
// views and parameters. Lifetime: the source outlives the output.  Throws: what TorchSaveWriter
// throws.
std::unique_ptr<Output> plan_torch_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options);

}  // namespace fsdp::formats
