// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt inspect: what is in a checkpoint; its options and parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/checkpoint/checkpoint.h"
#include "tools/common.h"

namespace fsdp::cli {

struct InspectOptions {
  CommonOptions common;
  std::size_t depth = SIZE_MAX;            // levels of the tree that are shown
  bool fold = false;                       // numbered layers that are alike: once
  bool no_fold = false;                    // on a terminal neither
  bool chunks = false;                     // each chunk: box, file, bytes
  bool files = false;                      // each file: bytes, rank
  When values = When::kAuto;               // values are read (kAuto: while there are few)
  std::string html;                        // file of the page; empty: none
  bool force = false;                      // replace that file
  std::optional<std::uint64_t> max_bytes;  // of all files; more is status 1
};

// "sharded checkpoint (torch.distributed.checkpoint)", "safetensors file": the format in words.
std::string format_name(const formats::CheckpointDescription& description);

// What a key is called where the object itself is one tensor or value, and has no key.
inline constexpr std::string_view kRootName = "(root)";
// A key for people.
std::string shown_key(const std::string& key, const formats::KeyPath& path);

// A value, or an error that names the way around it.
formats::Value read_value(const formats::Checkpoint& checkpoint, const formats::ValueEntry& entry);

// Whether `options` want the values of this checkpoint read.
bool reads_values(const InspectOptions& options, const formats::Checkpoint& checkpoint);

// The same as one JSON object, schema fsdp-ckpt/inspect/1 (docs/cli.md).
void print_inspect_json(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        std::ostream& out);

}  // namespace fsdp::cli
