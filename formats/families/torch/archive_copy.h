// SPDX-License-Identifier: Apache-2.0
// Copies storages into an archive whose layout is known, and writes the parts around them.
#pragma once

#include <cstdint>
#include <span>

#include "formats/bytes/outputs/file.h"
#include "formats/families/torch/writer.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Copies `pieces`, one for each storage of the layout, to their places in `file`, and writes the
// rest with their checksums.  `base`: the offset of the archive in the file.
//
// In a local file the rest is written at the end.  In a file that goes to a store, each part of the
// rest is written as soon as the storage before it is copied, because gaps would delay the upload.
// Throws: what copy_pieces and OutputFile::write_at throw.
CopyResult copy_archive(TorchSaveLayout& layout, std::span<const TargetPiece> pieces,
                        OutputFile& file, const CopyOptions& options, std::uint64_t base = 0);

}  // namespace fsdp::formats
