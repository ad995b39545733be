// SPDX-License-Identifier: Apache-2.0
// Opens a damaged checkpoint as far as it can be opened.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/front/salvage.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

struct OpenedAround {
  std::unique_ptr<StoredCheckpoint> checkpoint;
  std::optional<VerifyReport> report = {};  // if it was verified already
  std::string metadata = {};                // see Salvaged
  std::map<std::string, std::string> unread = {};
};

// Throws: what open_checkpoint throws, with what was tried, if nothing can be opened around the
// damage.
OpenedAround open_around(const std::filesystem::path& path, const SalvageOptions& options);

// Opens a folder as if it did not have some of its files, which are named relative to it.  Throws:
// what open_checkpoint throws.
std::unique_ptr<StoredCheckpoint> open_without(const std::filesystem::path& folder,
                                               const std::vector<std::string>& files,
                                               const SalvageOptions& options);

}  // namespace fsdp::formats
