// SPDX-License-Identifier: Apache-2.0
// Finds where torch.save puts the payloads of an archive, from its directory alone.
#pragma once

#include "formats/containers/zip/directory.h"

namespace fsdp::formats {

// Fills in data_offset of every entry, if all have the marks of torch.save: each payload then lies
// at a multiple of 64, and ends where the next header, or the data descriptor before it, begins.
// Returns false, for archives whose local headers must be read, if an entry lacks them.
bool foretell_payloads(ZipDirectory& directory);

}  // namespace fsdp::formats
