// SPDX-License-Identifier: Apache-2.0
// A torch.distributed.checkpoint folder: `.metadata` (or one per rank) and the data files it names.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/listing.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::dcp {

// Returns whether the folder holds `.metadata` or rank-local metadata files.
bool is_dcp_folder(const Listing& folder);

// Metadata that are read in place of a folder's own.
struct MetadataPlace {
  std::filesystem::path folder;
  std::string name;  // of the file in it
};

// Opens the folder: reads its metadata and the sizes of its files, but no data.  The members of a
// team open it together; the leader reads the metadata for all.
// Throws: kNoMetadata (naming the leftovers of an interrupted save), kNotRegular, kMetaType,
// kGlobal and the other errors of read_metadata; kPath, kPathEscape for files outside the folder.
// `metadata`: a place to read the metadata from instead; may be null.
std::unique_ptr<StoredCheckpoint> open_dcp(const std::filesystem::path& folder,
                                           const std::set<std::string>& allowed_globals,
                                           Team& team = this_process(),
                                           const MetadataPlace* metadata = nullptr);

}  // namespace fsdp::formats::dcp
