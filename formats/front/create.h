// SPDX-License-Identifier: Apache-2.0
// The front door for writing: plans an output of any format.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/bytes/outputs/options.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

struct CreateOptions {
  OutputOptions output;
  std::optional<std::uint64_t> max_shard_bytes;  // safetensors: split into files, with an index
  bool drop_values = false;     // safetensors: leave out values that are not tensors
  std::int64_t world_size = 1;  // dcp: number of ranks of the output
  std::string layout = {};      // torch_dist: the folder's layout; empty: torch_dist_layout()
};

// The formats of Megatron-Core's torch_dist folders.  The first keeps the layout of a source that
// is such a folder, else writes as the newest version does; the others write as the named version
// does.
inline constexpr std::array<std::string_view, 5> kTorchDistFormats = {
    "torch_dist", "torch_dist-0.16", "torch_dist-0.17", "torch_dist-0.18", "torch_dist-0.19"};
bool is_torch_dist(std::string_view format);
// Returns the layout of a folder of `format`.  `source`: the layout of the source checkpoint (see
// CheckpointDescription).
std::string torch_dist_layout(std::string_view format, std::string_view source);

// Returns "pt", "safetensors", "hdf5", "dcp", ... by the suffix of `destination`.  Throws: kUsage.
std::string format_from_suffix(const std::filesystem::path& destination);

// Plans an output of `content`, which content_of returned, edited or not.  Lifetime: the source
// outlives the output.  Throws: kUnsupported if the format cannot hold the content (values in
// safetensors, a dtype), naming a key and what to do; kUsage for options that the format lacks.
std::unique_ptr<Output> plan_output(const std::string& format, const Checkpoint& source,
                                    const Value& content, const std::filesystem::path& destination,
                                    const CreateOptions& options);

}  // namespace fsdp::formats
