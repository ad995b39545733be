// SPDX-License-Identifier: Apache-2.0
// The files of a DeepSpeed checkpoint: a tag folder, and the text file `latest` beside it that
// names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/listing.h"

namespace fsdp::formats::deepspeed {

// One `*_model_states.pt` or `*_optim_states.pt`.
struct StateFile {
  std::string name;
  bool optimizer = false;
  std::optional<std::int64_t> rank;  // data parallel; nothing if one file belongs to all ranks
  std::int64_t model_rank = 0;       // tensor parallel
  bool other = false;                // file of a pipeline's layers, or of experts
};

// Parses `name`; returns nothing if it is not such a file.
std::optional<StateFile> state_file(std::string_view name);

// Returns the state files of a folder, by rank.
std::vector<StateFile> state_files(const Folder& folder);

// Returns the members of the folder except tag folders, files that name them, and DeepSpeed's own
// programs.
std::vector<std::string> beside_tags(const Folder& folder);

// Returns the folder within `folder` that the text file `file` names; nothing if there is no such
// file, or the file names no folder.
std::optional<std::string> named_folder(const Folder& folder, const std::string& file);

// Returns `folder` if it is a tag folder, or the tag folder that its `latest` names; nothing if it
// is neither.
std::optional<std::filesystem::path> tag_folder(const Listing& folder);

}  // namespace fsdp::formats::deepspeed
