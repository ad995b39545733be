// SPDX-License-Identifier: Apache-2.0
// Links in the cache of huggingface_hub: the only ones that are followed out of a folder.
// Source: "Understand caching" in its documentation, utils/_shared_blobs.py.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace fsdp::formats {

// A file below a folder of blobs.
struct CachedBlob {
  std::filesystem::path folder;
  std::string name;  // relative to the folder
};

// Returns what a link in a snapshot leads to:
//   CACHE/models--org--name/snapshots/COMMIT/a/config.json -> ../../../blobs/DIGEST
// A blob may be a link itself, into a store that several repositories share and that has a mark:
//   CACHE/models--org--name/blobs/DIGEST -> ../../blobs/ab/HASH
// `folder`: a snapshot, or a folder in it; `name`: relative to it.  The blob may be missing.
// nullopt: there is no such link.
std::optional<CachedBlob> blob_of_link(const std::filesystem::path& folder,
                                       const std::string& name);

}  // namespace fsdp::formats
