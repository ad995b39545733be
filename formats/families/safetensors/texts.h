// SPDX-License-Identifier: Apache-2.0
// The texts that safetensors files keep beside their tensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::safetensors {

// Returns the __metadata__ of the files of a checkpoint, those of one file after those of another;
// nothing for other formats.  Reads headers again.
// Throws: kIo, and the errors of read_header, with the file.
std::vector<std::pair<std::string, std::string>> texts_of(const Checkpoint& source);

}  // namespace fsdp::formats::safetensors
