// SPDX-License-Identifier: Apache-2.0
// A step of several checkpoints (families/runs/steps.h) for other ranks.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/families/runs/formats.h"

namespace fsdp::formats {

// Plans the parts of a step, such as actor/ and critic/, each in its own layout for
// options.world_size ranks; files beside them go along.  Returns null if no part has a layout that
// is kept (kept_output_word), so that the step can only become another folder.
// Requires: options.beside.  `source`: the opened step, which outlives the output.
// Throws: kUnsupported naming a part that cannot be kept though another one can; what
// open_checkpoint, plan_output and carried_files throw, beginning with the path of the part.
std::unique_ptr<Output> plan_step(const Checkpoint& source,
                                  const std::filesystem::path& destination,
                                  const CreateOptions& options, const OpenOptions& open);

}  // namespace fsdp::formats
