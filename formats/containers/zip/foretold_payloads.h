// SPDX-License-Identifier: Apache-2.0
// Where torch.save puts the payloads of an archive, told from its directory alone.
#pragma once

#include "formats/containers/zip/directory.h"

namespace fsdp::formats {

// Fills in data_offset of every entry, if all have the marks of torch.save: each payload then ends
// where the next header, or the data descriptor before it, begins, and lies at a multiple of 64.
// Returns whether it did; if not, only the local headers tell.
bool foretell_payloads(ZipDirectory& directory);

}  // namespace fsdp::formats
