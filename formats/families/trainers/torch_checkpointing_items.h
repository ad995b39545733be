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
  Findings findings;  // contradictions that leave the rest readable
};

// Reads an item that the metadata describe, from the files of `ranks`; the others leave holes.
// torch.save files: the metadata tell how tensors are cut; the rest comes from the lowest rank.
// Safetensors: only the metadata tell the places of the bare tensors.
// Findings: kKey (a rank's file lacks a tensor), kMetaType (a warning: a tensor outside the
// metadata, cut or in a safetensors file).
// Throws: kUnsupported (another serialization, or several), kDtype, kShape, kBounds (metadata and
// file disagree); what reading the files throws.  Requires: `ranks` is not empty.
ItemParts open_item(const std::filesystem::path& folder, const Item& item,
                    const std::vector<std::int64_t>& ranks);

}  // namespace fsdp::formats::torch_checkpointing
