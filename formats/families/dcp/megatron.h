// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's torch_dist folders: a folder of torch.distributed.checkpoint with the state that
// is not sharded, and `metadata.json`, which names the kind of folder and is written last.  Up to
// 0.18 that state is the file `common.pt`, from 0.19 on an item: a list of one dict.
// Source: megatron/core/dist_checkpointing of Megatron-Core 0.9 to 0.19; docs/formats/megatron.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats::dcp {

// Returns whether the word of --to is "torch_dist", or that with a version: "torch_dist-0.18".
bool is_torch_dist(std::string_view word);
// Returns the layout of a folder that is written for the word, from a source of that layout; empty:
// the source's.  "torch_dist" keeps a layout of torch_dist, and else is as the newest version
// writes it.
std::string written_layout(std::string_view word, std::string_view source);

// Returns the metadata.json of a folder of that layout (see names.h).
std::string_view megatron_metadata(std::string_view layout);

struct MegatronFolder {
  enum class Common { kFile, kItem, kUnclear };
  Common common = Common::kFile;       // what holds the common state; unclear: neither, or both
  std::string_view layout;             // see names.h
  std::optional<std::string> version;  // of the sharded part, if metadata.json states it
  Findings findings;                   // what is missing, or contradicts something else
};

// Describes a folder of Megatron-Core; nothing if the folder is none, even if it has files of these
// names.  `item`: the folder has the item of the common state.
// Throws: the errors of opening and reading files.
std::optional<MegatronFolder> megatron_folder(const Folder& folder,
                                              const std::vector<std::string>& names, bool item);

// Returns the common state that the item's value holds; nullptr if it is not a list of one dict.
// Lifetime: that of `root`.
const Value* common_state_of(const Value& root);
// Returns the value of an item that holds the common state.
Value common_state_item(Value state);

}  // namespace fsdp::formats::dcp
