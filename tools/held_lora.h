// SPDX-License-Identifier: Apache-2.0
// LoRA adapters on the command line: where their settings are, and checkpoints that hold one
// beside its base.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/lora/adapter_config.h"
#include "formats/changes/lora/merge.h"
#include "formats/families/hf/companions.h"
#include "tools/writing.h"

namespace fsdp::cli {

// Reads peft's adapter_config.json, or verl's lora_train_meta.json by its name.
formats::AdapterConfig read_adapter_config(const std::filesystem::path& path);

// The file that says how the matrices of an adapter are meant, in its folder or the one around it.
// Empty if there is none.
std::filesystem::path find_adapter_config(const std::string& path);

// The checkpoint by the names of modules, which an adapter has: Megatron-Core's folders join
// layers. The result keeps what it reads.
std::shared_ptr<const formats::Checkpoint> by_module(
    std::shared_ptr<const formats::Checkpoint> source, formats::Value& content);

// Says what stays behind of the states that an optimizer has of matrices.
void note_dropped_states(std::size_t dropped, formats::LoraMerge& merge);

// Merges the adapter that the content of a checkpoint holds beside its base, with the settings that
// lie beside `path`, and adds what it did to the report.  Nothing if it holds none.  If the merge
// unties an embedding and a head, so does the configuration.
// Lifetime: `source` outlives the result.
// Throws: kNotFound without settings, kMismatch for an adapter without its base, naming the next
// command; what merge_lora throws.
std::optional<formats::LoraMerge> merged_held_adapter(const formats::Checkpoint& source,
                                                      const formats::Value& content,
                                                      const std::string& path,
                                                      formats::hf::Companions& companions,
                                                      ReportExtras& extras);

// Throws: kUnsupported if names of a model are those of an adapter, which no class has.  `path`: of
// the checkpoint, for messages.
void refuse_adapter_names(const std::string& path, const std::vector<std::string>& names);

}  // namespace fsdp::cli
