// SPDX-License-Identifier: Apache-2.0
// Writes a torch.distributed.checkpoint folder laid out as FSDP would have saved it at a given
// number of ranks: parameters and their optimizer states cut along dimension 0 by torch.chunk's
// rule, everything else stored once and spread over the ranks as DCP does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/families/dcp/sharding.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

struct DcpOutputOptions {
  std::int64_t world_size = 1;
  dcp::ShardingChoice choice;  // see Note [which tensors are cut]
  std::string folder;          // inside the destination, "" or with a slash at the end
  // The layout that the folder gets (see CheckpointDescription); empty: that of the source.
  std::string layout;
  // If set: the contents of meta.pt, instead of the source's; empty: no such file.
  std::optional<Value> meta;
  // Called for each value after it is read, before anything is written; may throw to refuse it.
  std::function<void(const std::string& key, const Value& value)> on_value;
};

// One data file `__R_N.distcp` per rank (empty if the rank has nothing): values first, then
// tensors, one after another, each as torch.save writes it.  `.metadata` comes after them.  State
// that Lightning keeps in meta.pt stays there.  State that Megatron-Core keeps in common.pt goes
// there or, depending on the layout, into an item; its metadata.json comes after .metadata.
//
// `content` is the result of content_of, edited or not.  Lifetime: the source outlives the output.
// Memory: a few hundred bytes per entry and 16 per rank, whatever the tensors hold.
// Throws: kUsage (world size), the errors of entries_of and ShardingRule, and those of reading
// values.
std::unique_ptr<Output> plan_dcp_output(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const OutputOptions& options, const DcpOutputOptions& dcp);
}  // namespace fsdp::formats
