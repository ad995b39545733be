// SPDX-License-Identifier: Apache-2.0
// Checkpoints of safetensors files: one file, a Hugging Face folder with or without an index, or
// the folder that each rank of PyTorch's HuggingFaceStorageWriter wrote a file into.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/checkpoint/checkpoint.h"

namespace fsdp::formats::safetensors {

// Whether the file begins as a safetensors file does: a plausible length, then '{'.
bool looks_like_safetensors(const ByteSource& source);

// Throws: what read_header throws, beginning with the path.
std::unique_ptr<Checkpoint> open_file(const std::filesystem::path& path);

// A folder that holds *.safetensors.  With an index file (*.safetensors.index.json) that one says
// which files and tensors belong to it; with offsets in the headers the files are joined by them;
// otherwise every file is read. `index` names the index file where there are several. Throws:
// kIndex (index and files disagree, several indexes, a rank's file is missing, two files hold a
// tensor), kNotFound where there is no safetensors file, kDtype, kRank; what read_header throws.
std::unique_ptr<Checkpoint> open_folder(const std::filesystem::path& folder,
                                        const std::optional<std::string>& index = std::nullopt);

// Whether the folder holds a *.safetensors file or an index of such.
bool is_safetensors_folder(const std::filesystem::path& folder);

}  // namespace fsdp::formats::safetensors
