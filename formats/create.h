// SPDX-License-Identifier: Apache-2.0
// The front door for writing: plans an output of any format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/content/output.h"
#include "formats/files/atomic_output.h"

namespace fsdp::formats {

struct CreateOptions {
  OutputOptions output;
  std::optional<std::uint64_t> max_shard_bytes;  // safetensors: a folder of files, with an index
  bool drop_values = false;     // safetensors: leave out values that are not tensors
  std::int64_t world_size = 1;  // dcp: number of ranks of the output
};

// Returns "pt", "safetensors", "hdf5", "dcp", ... by the suffix of `destination`.  Throws: kUsage.
std::string format_from_suffix(const std::filesystem::path& destination);

// `content` is the result of content_of, edited or not.  Lifetime: the source outlives the output.
// Throws: kUnsupported if the format cannot hold the content (values in safetensors, a dtype),
// naming a key and what to do; kUsage for options that the format lacks.
std::unique_ptr<Output> plan_output(const std::string& format, const Checkpoint& source,
                                    const Value& content, const std::filesystem::path& destination,
                                    const CreateOptions& options);

}  // namespace fsdp::formats
