// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt consolidate: a sharded checkpoint becomes one full state dict.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/common.h"

namespace fsdp::cli {

struct ConsolidateOptions {
  CommonOptions common;
  std::string destination;
  std::string format;  // "pt", "safetensors"; empty: by the destination's suffix
  std::optional<std::uint64_t>
      max_shard_bytes;       // safetensors: a folder of files of at most this size
  bool drop_values = false;  // safetensors: leave out what is no tensor
  bool dry_run = false;
  bool force = false;  // replace an existing destination
  bool sync = true;    // fsync before it counts as done
};

// Returns 0.  Throws: Error; nothing is written then.
int consolidate(const ConsolidateOptions& options, const Streams& streams);

}  // namespace fsdp::cli
