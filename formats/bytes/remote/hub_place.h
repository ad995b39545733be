// SPDX-License-Identifier: Apache-2.0
// The parts of a URL of the Hugging Face Hub, and where the hub answers for them.
// Source: utils/_hf_uris.py of huggingface_hub.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::formats {

// Of hf://[KIND/]org/name[@revision][/path].
struct HubPlace {
  std::string kind;      // "models", which may be left out, "datasets", "spaces", ..., "buckets"
  std::string repo;      // "org/name"
  std::string revision;  // "main" if none is named; empty for a bucket, which has none
  std::string path;      // in the repository or bucket; empty: its root

  bool is_bucket() const { return kind == "buckets"; }
  // Return targets below the hub's root, encoded: of the file; of the list of the folder, at
  // `commit` instead of the revision if it is not empty; of what the revision is.
  std::string file_target() const;
  std::string tree_target(std::string_view commit = {}) const;
  std::string revision_target() const;
};

// Throws: kUsage for a URL that names neither a repository nor a bucket.
HubPlace hub_place(const std::string& url);

}  // namespace fsdp::formats
