// SPDX-License-Identifier: Apache-2.0
// Files of each rank with flat parameters, as FSDP1's LOCAL_STATE_DICT has them: read together as
// one checkpoint, and divided into parameters if a list gives their names and shapes.
// docs/formats/fsdp1_local.md.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/files/listing.h"
#include "formats/families/flat/parameter_list.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::flat {

// Returns whether a set of rank files (per_rank.h) in the folder holds flat parameters.
bool is_flat_folder(const Listing& folder);

// Opens the sets of a folder, each under its name if there are several; sets without flat
// parameters as open_rank_folder does.
// Without a list the index has the flat parameters, which cannot be copied, and a finding says so.
// With a list it has the parameters by name, in the order of the list, the other content of the
// lowest rank, and optimizer states by name.  A rank without a file leaves holes; findings name
// what is not read: optimizers whose parameters are not known. Throws: what take_flat_parameters,
// divide, flat_optimizers and open_rank_files throw, beginning with the path.
std::unique_ptr<StoredCheckpoint> open_flat_folder(const std::filesystem::path& folder,
                                                   const ParameterList* list);

// Opens a set of rank files: as above if they hold flat parameters, else as open_rank_files does.
std::unique_ptr<StoredCheckpoint> open_flat_files(const std::filesystem::path& folder,
                                                  const RankFiles& set, const ParameterList* list);

}  // namespace fsdp::formats::flat
