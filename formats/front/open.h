// SPDX-License-Identifier: Apache-2.0
// The front door: finds out what a path holds and opens it.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/families/runs/formats.h"

namespace fsdp::formats {

// Detects the format from content, never from a name alone, and opens the checkpoint: metadata is
// read, data is not. Throws: kNotFound; kUnknownFormat naming near misses one level up and down;
// the errors of the formats.
std::unique_ptr<StoredCheckpoint> open_checkpoint(const std::filesystem::path& path,
                                                  const OpenOptions& options = {});

}  // namespace fsdp::formats
