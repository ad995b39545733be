// SPDX-License-Identifier: Apache-2.0
// A torch.save file as a checkpoint: one object, its tensors and values by path.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Opens a torch.save file.  Throws: what read_torch_file throws, beginning with the path.
std::unique_ptr<Checkpoint> open_torch_save(const std::filesystem::path& path);

}  // namespace fsdp::formats
