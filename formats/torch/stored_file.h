// SPDX-License-Identifier: Apache-2.0
// A torch.save file that may lie in a store, where each read that nothing foretold is a request.
#pragma once

#include "formats/files/file.h"
#include "formats/torch/stream.h"

namespace fsdp::formats {

// Like read_torch_file.  Of an archive in a store it reads the two ends alone, where pickle and
// directory are: its local headers are left for check_headers.
TorchFile read_torch_save(const File& file, std::uint64_t archive = 0);

// Reads and checks the local headers of `torch`, which was read from `file`, if nobody has so far.
// Precedes every use of data.  Thread-safe.
// Throws: what ZipReader throws, beginning with the path; kZipPadding if a payload is not where the
// directory made it seem.
void check_headers(const TorchFile& torch, const File& file);

}  // namespace fsdp::formats
