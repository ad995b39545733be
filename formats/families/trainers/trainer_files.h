// SPDX-License-Identifier: Apache-2.0
// Files that trainers save beside models and optimizers: schedulers, scalers, samplers, random
// states.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// Returns the number behind a name: "" -> 0, "_3" -> 3; nothing for other texts.
std::optional<std::int64_t> number_behind(std::string_view text);

// Returns whether the name is that of such a file: scheduler, scaler, sampler, dl_state_dict or
// rng_state, perhaps with "_<number>", as .pt, .pth or .bin; or custom_checkpoint_<number>.pkl.
bool is_trainer_file(const std::string& name);

struct TrainerFiles {
  std::vector<CheckpointPart> parts;  // each under the name before its suffix
  Findings findings;
};

// Reads those of `names` that are torch.save files of plain values.  `one_value`: each file becomes
// one value.  A file with such a name that cannot be read is damage: trainers write nothing else
// under these names.  A warning lists the other names, as left_out_finding does.  `kept`: see
// there. Throws: kIo, kOutOfMemory, kInterrupted.
TrainerFiles trainer_files(const std::filesystem::path& folder,
                           const std::vector<std::string>& names, bool one_value,
                           bool kept = false);

// Adds the files that a trainer saved beside the tag folders of DeepSpeed in `root`, each under its
// name; a finding names files that are not read.
std::unique_ptr<StoredCheckpoint> with_trainer_files(std::unique_ptr<StoredCheckpoint> checkpoint,
                                                     const std::filesystem::path& root);

// Returns a warning that lists files that are not read; none if these are only hidden ones and
// descriptions (checkpoint_names.h).  `kept`: the layout can be written for other ranks, and they
// go along.
Findings left_out_finding(const std::vector<std::string>& names, bool kept = false);

}  // namespace fsdp::formats
