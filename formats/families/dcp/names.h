// SPDX-License-Identifier: Apache-2.0
// Every file name of a torch.distributed.checkpoint folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats::dcp {

inline constexpr std::string_view kMetadataName = ".metadata";
// The file that the coordinator writes and then renames to .metadata.
inline constexpr std::string_view kMetadataTempName = ".metadata.tmp";
// Beside .metadata in Lightning's folders: the remaining state of the trainer.
inline constexpr std::string_view kLightningMetaName = "meta.pt";
// Megatron-Core's folders: the state that is not sharded, up to 0.18 a file beside .metadata, from
// 0.19 on the item under this key.  metadata.json names the kind of folder, and is written last.
inline constexpr std::string_view kMegatronCommonName = "common.pt";
inline constexpr std::string_view kMegatronCommonKey = "common_state/shard_0_1";
inline constexpr std::string_view kMegatronMetadataName = "metadata.json";
// Their layouts (see CheckpointDescription): with that file, and with that item.
inline constexpr std::string_view kMegatronLayout = "megatron";
inline constexpr std::string_view kMegatronItemLayout = "megatron-0.19";
// The folders inside a folder of NeMo: one of Megatron-Core, and the context of the model.
inline constexpr std::string_view kNemoWeights = "weights";
inline constexpr std::string_view kNemoContext = "context";

// Returns the name of the file beside .metadata whose entries are values of the checkpoint, for a
// folder of that layout (see CheckpointDescription); empty for layouts without such a file.
std::string_view state_file_of(std::string_view layout);
// Returns whether the layout is one of the two of Megatron-Core's torch_dist.
bool is_megatron_layout(std::string_view layout);
bool is_state_file(std::string_view name);

// Returns the rank: "__3_0.distcp" -> 3.
std::optional<std::int64_t> rank_of_data_file(std::string_view name);
// Returns the rank in the name of the file that each rank writes if no coordinator gathers the
// metadata: "__3.metadata" -> 3.
std::optional<std::int64_t> rank_of_local_metadata(std::string_view name);
// Returns "__3_0.distcp" for (3, 0).
std::string data_file_name(std::int64_t rank, std::int64_t number);

}  // namespace fsdp::formats::dcp
