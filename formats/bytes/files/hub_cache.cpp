// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/hub_cache.h"

#include <system_error>

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSnapshots = "snapshots";
constexpr const char* kBlobs = "blobs";
constexpr const char* kSharedMark = ".huggingface-shared-blobs";

// Returns where a relative link leads to; nothing if it is none.  Requires: no part of the path
// before its last is a link.
std::optional<fs::path> link_target(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (error || target.is_absolute()) return std::nullopt;
  return (link.parent_path() / target).lexically_normal();
}

// Returns the repository's folder in the cache, for a folder of a snapshot; else nothing.
std::optional<fs::path> repository_of(fs::path folder) {
  while (folder.has_relative_path()) {
    fs::path above = folder.parent_path();
    if (above.filename() == kSnapshots) return above.parent_path();
    folder = std::move(above);
  }
  return std::nullopt;
}

}  // namespace

std::optional<CachedBlob> blob_of_link(const fs::path& folder, const std::string& name) {
  const fs::path link = folder / name;
  std::error_code error;
  const fs::path place = fs::canonical(link.parent_path(), error);
  if (error) return std::nullopt;
  const auto repository = repository_of(place);
  if (!repository) return std::nullopt;
  const auto blob = link_target(place / link.filename());
  if (!blob || blob->parent_path() != *repository / kBlobs) return std::nullopt;
  if (!fs::is_symlink(fs::symlink_status(*blob, error)))
    return CachedBlob{blob->parent_path(), blob->filename()};
  const fs::path store = repository->parent_path() / kBlobs;
  const auto shared = link_target(*blob);
  if (!shared || shared->parent_path().parent_path() != store ||
      !fs::is_regular_file(fs::symlink_status(store / kSharedMark, error))) {
    return std::nullopt;
  }
  return CachedBlob{store, shared->parent_path().filename() / shared->filename()};
}

}  // namespace fsdp::formats
