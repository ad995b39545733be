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

#include "formats/files/file.h"

namespace fsdp::formats::deepspeed {

// One `*_model_states.pt` or `*_optim_states.pt`.
struct StateFile {
  std::string name;
  bool optimizer = false;
  std::optional<std::int64_t> rank;  // data parallel; nothing where one file is of all ranks
  std::int64_t model_rank = 0;       // tensor parallel
  bool other = false;                // of a pipeline's layers or of experts
};

// What `name` says; nothing where it is no such file.
std::optional<StateFile> state_file(std::string_view name);

// The state files of a folder, by rank.
std::vector<StateFile> state_files(const Directory& folder);

// What lies in the folder beside tag folders, what names them, and DeepSpeed's own programs.
std::vector<std::string> beside_tags(const Directory& folder);

// The folder within `folder` that the text file `file` names; nothing where there is no such file,
// or it names none.
std::optional<std::string> named_folder(const Directory& folder, const std::string& file);

// The tag folder that `folder` is, or that its `latest` names; nothing where it is neither.
std::optional<std::filesystem::path> tag_folder(const std::filesystem::path& folder);

}  // namespace fsdp::formats::deepspeed
