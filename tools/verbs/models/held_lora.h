// SPDX-License-Identifier: Apache-2.0
// LoRA adapters on the command line: where their settings are, and checkpoints that hold an adapter
// beside its base.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/changes/lora/adapter_config.h"
#include "formats/changes/lora/merge.h"
#include "formats/families/hf/companions.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

// Reads peft's adapter_config.json, or, by its name, verl's lora_train_meta.json.
formats::AdapterConfig read_adapter_config(const std::filesystem::path& path);

// Returns the path of the settings of an adapter, in its folder or the parent folder.  Empty if
// there are none.
std::filesystem::path find_adapter_config(const std::string& path);

// Returns the checkpoint with the names of modules, as an adapter has them: Megatron-Core's folders
// join layers.  The result keeps its source alive.
std::shared_ptr<const formats::Checkpoint> by_module(
    std::shared_ptr<const formats::Checkpoint> source, formats::Value& content);

// Reports the optimizer states of adapter matrices that are left out.
void note_dropped_states(std::size_t dropped, formats::LoraMerge& merge);

// Merges the adapter that the content of a checkpoint holds beside its base, by the settings beside
// `path`, and reports the changes.  Returns nothing if there is no adapter.  If the merge unties an
// embedding and a head, the configuration is changed accordingly.
// Lifetime: `source` outlives the result.
// Throws: kNotFound without settings, kMismatch for an adapter without its base, naming the next
// command; what merge_lora throws.
std::optional<formats::LoraMerge> merged_held_adapter(const formats::Checkpoint& source,
                                                      const formats::Value& content,
                                                      const std::string& path,
                                                      formats::hf::Companions& companions,
                                                      ReportExtras& extras);

// Throws: kUnsupported if names of a model look like those of an adapter, which no class has.
// `path`: the checkpoint, for messages.
void refuse_adapter_names(const std::string& path, const std::vector<std::string>& names);

}  // namespace fsdp::cli
