// SPDX-License-Identifier: Apache-2.0
// An archive of torch.save that lost its end, or whose directory is damaged: finds the records that
// are whole by their local headers and descriptors, which come before the directory.
#pragma once

#include <memory>

#include "formats/bytes/base/byte_source.h"

namespace fsdp::formats {

// Returns the payloads of `cut` up to the first record that is not whole, with the headers and the
// directory that torch.save writes for them.  A record is whole if its
// descriptor is there and has the size and the CRC-32 of the payload.
// Lifetime: `cut` outlives the result.
// Throws: kZipEocd if no record is whole, or the archive is not laid out as torch.save does; kIo.
std::unique_ptr<const ByteSource> with_new_directory(const ByteSource& cut);

}  // namespace fsdp::formats
