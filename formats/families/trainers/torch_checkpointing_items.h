// SPDX-License-Identifier: Apache-2.0
// One item of a folder by torch_checkpointing, read from the files of its ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "formats/families/trainers/torch_checkpointing_metadata.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::torch_checkpointing {

struct ItemParts {
  std::unique_ptr<Checkpoint> checkpoint;
  Findings findings;  // where metadata and files disagree, and the rest can still be read
};

// Reads an item that the metadata describe, from the files of `ranks`; the others leave holes.
// torch.save files: tensors are cut as the metadata say, and the rest is the lowest rank's.
// Safetensors: their bare tensors are placed by the metadata alone.
// Findings: kKey (a rank's file lacks a tensor), kMetaType (a warning: a tensor outside the
// metadata, cut or in a safetensors file).
// Throws: kUnsupported (another serialization, or several), kDtype, kShape, kBounds (metadata and
// file disagree); what reading the files throws.  Requires: `ranks` is not empty.
ItemParts open_item(const std::filesystem::path& folder, const Item& item,
                    const std::vector<std::int64_t>& ranks);

}  // namespace fsdp::formats::torch_checkpointing
