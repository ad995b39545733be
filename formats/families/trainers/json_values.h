// SPDX-License-Identifier: Apache-2.0
// A JSON file read as a checkpoint of plain values.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Opens a JSON file; objects become dicts, arrays lists.
// Throws: kLimitSize, kJson, kJsonDepth, kIo, beginning with the path.
std::unique_ptr<Checkpoint> open_json_values(const std::filesystem::path& folder,
                                             const std::string& name);

}  // namespace fsdp::formats
