// SPDX-License-Identifier: Apache-2.0
// What trainers save beside models and optimizers, each in a file of its own: schedulers, scalers,
// samplers, random states.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formats/content/combined_checkpoint.h"
#include "formats/model/finding.h"

namespace fsdp::formats {

// Whether the name is that of such a file: scheduler, scaler, sampler, dl_state_dict, rng_state,
// or one of these and "_<number>", as .pt, .pth or .bin.
bool is_trainer_file(const std::string& name);

struct TrainerFiles {
  std::vector<CheckpointPart> parts;  // each under the name before its suffix
  Findings findings;
};

// Those of `names` that are torch.save files of plain values.  With `one_value` each is one value.
// A file with the name of such that cannot be read is damage: trainers write nothing else under it.
// A warning lists the other names, unless they are hidden. Throws: kIo, kOutOfMemory, kInterrupted.
TrainerFiles trainer_files(const std::filesystem::path& folder,
                           const std::vector<std::string>& names, bool one_value);

// A warning that lists what is not read; none where that is nothing but hidden files.
Findings left_out_finding(const std::vector<std::string>& names);

}  // namespace fsdp::formats
