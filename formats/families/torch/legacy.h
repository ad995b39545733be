// SPDX-License-Identifier: Apache-2.0
// The torch.save format before zip archives: five pickles back to back, then the storages.
// Source: _legacy_save in torch/serialization.py.
#pragma once

#include "formats/families/torch/stream.h"

namespace fsdp::formats {

// Reads everything but the storages, which carry no checksum.
// Requires: sniff_torch_stream said kLegacy.
// Throws: kUnsupported (protocol, byte order, views of storages), kRecordMissing, kRecordSize,
// kTrailing, kType; what the pickle machine throws.
TorchFile read_torch_legacy(const ByteSource& source, std::uint64_t archive);

}  // namespace fsdp::formats
