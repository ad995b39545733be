// SPDX-License-Identifier: Apache-2.0
// A checkpoint of nanotron: model/ with a file for each parameter, or one for each rank of tensor
// parallelism, whose metadata say which slices of the parameter they are; optimizer/,
// lr_scheduler/, random/ beside it.
// Source: nanotron/serialize of nanotron 0.4 and its repository of April 2026.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/files/listing.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::nanotron {

// Returns whether the folder holds such a model/ beside checkpoint_metadata.json or
// model_config.json.
bool is_nanotron_folder(const Listing& folder);
// Opens the parameters as `model`, and the optimizer and the scheduler of a job of one rank.  A
// rank without a file leaves a hole; findings name missing and left out files.
// Throws: kIndex, kKey, kDtype, kShape, kStMetadata; what the readers of the files throw.
std::unique_ptr<StoredCheckpoint> open_nanotron(const std::filesystem::path& folder);

}  // namespace fsdp::formats::nanotron
