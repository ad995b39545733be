// SPDX-License-Identifier: Apache-2.0
// Names folders of arrays that other frameworks save, and the command that makes a safetensors file
// of them: Orbax's checkpoints of JAX, and zarr.  docs/formats/orbax.md says why they are not read.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/files/listing.h"

namespace fsdp::formats {

// Returns "is an Orbax checkpoint of JAX ...; <command>" for such a folder; nothing for others.
// Counts the arrays that its metadata name, if they are readable, and lists the first of them.
std::optional<std::string> foreign_folder(const Listing& folder);

}  // namespace fsdp::formats
