// SPDX-License-Identifier: Apache-2.0
// A checkpoint rewritten whole in a format: what consolidate and convert share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/model/name_map.h"
#include "tools/common.h"
#include "tools/verb.h"
#include "tools/writing.h"

namespace fsdp::cli {

struct ConversionOptions {
  WritingOptions writing;
  std::string format;                            // empty: by the destination's suffix
  std::optional<std::uint64_t> max_shard_bytes;  // safetensors: a folder of files
  bool drop_values = false;                      // safetensors: leave out what is no tensor
  std::string dtype;                             // floating tensors are cast to it; empty: as is
  std::vector<std::string> strip_prefixes;       // as `rename --strip-prefix`
  std::int64_t world_size = 1;                   // dcp
};

// Declares OUT, --to with these formats, and the options above but the world size.
void declare_conversion(OptionSet& options, ConversionOptions& conversion,
                        const std::vector<std::string>& formats);

// Opens the checkpoint of `common`.  Throws: what open_checkpoint throws.
std::unique_ptr<formats::Checkpoint> open_source(const CommonOptions& common);

// What the checkpoint holds, narrowed to the keys of `common`.  Throws: kNotFound where no key
// matches.
formats::Value selected_content(const formats::Checkpoint& source, const CommonOptions& common);

// Whether an error says what is wrong with rules for names, and nothing of where.
bool is_about_rules(ErrorCode code);

// What --strip-prefix asks for: "auto" or prefixes.
formats::NameRules strip_rules(const std::vector<std::string>& words);

// Returns 0.  Throws: Error; nothing is written then.
int convert_checkpoint(const std::string& verb, const ConversionOptions& conversion,
                       const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
