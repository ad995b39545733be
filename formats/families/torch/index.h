// SPDX-License-Identifier: Apache-2.0
// Weights in several torch.save files with an index that names the file of each tensor:
// pytorch_model-00001-of-00002.bin and pytorch_model.bin.index.json.
// Source: transformers/modeling_utils.py of Transformers 4.57, save_model of Accelerate 1.15;
// docs/formats/torch_save.md.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns whether the name is that of an index of torch.save files: *.bin.index.json.
bool is_torch_index_name(const std::string& name);

bool holds_torch_index(const std::filesystem::path& folder);

// Returns the only index of the folder.  Requires: holds_torch_index.  Throws: kIndex if there are
// several.
std::string torch_index_of(const std::filesystem::path& folder);

// Opens the files of the index as one checkpoint: each key of each file, in the order of the files'
// names.  Findings name contradictions to the index: a missing file, a different total_size, and a
// key in two files, in the wrong file, in no file, or not in the index.
// Throws: what parse_index and read_torch_file throw.
std::unique_ptr<Checkpoint> open_torch_index(const std::filesystem::path& folder,
                                             const std::string& index);

}  // namespace fsdp::formats
