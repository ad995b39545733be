// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's torch_dist folders: a folder of torch.distributed.checkpoint with `common.pt`,
// the state that is not sharded, and `metadata.json`, which names the kind of folder and is written
// last.
// Source: megatron/core/dist_checkpointing of Megatron-Core 0.9 to 0.16; docs/formats/dcp.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/files/file.h"
#include "formats/model/finding.h"

namespace fsdp::formats::dcp {

// The metadata.json of a folder of this kind, as Megatron-Core 0.9 and later write it.
inline constexpr std::string_view kMegatronMetadata =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

struct MegatronFolder {
  bool common = true;                  // common.pt is there
  std::optional<std::string> version;  // of the sharded part, if metadata.json states it
  Findings findings;                   // a metadata.json that is missing or contradicts the folder
};

// Returns nothing if the folder, although it has files of these names, is not Megatron-Core's.
// Throws: what opening and reading files throw.
std::optional<MegatronFolder> megatron_folder(const Directory& folder,
                                              const std::vector<std::string>& names);

}  // namespace fsdp::formats::dcp
