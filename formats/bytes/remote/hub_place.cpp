// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_place.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/encoding.h"

namespace fsdp::formats {
namespace {

// Finds the end of a revision.  "refs/pr/1" and "refs/convert/parquet" are revisions despite their
// slashes.
std::size_t end_of_revision(std::string_view text) {
  std::size_t from = 0;
  if (text.starts_with("refs/pr/")) from = 8;
  if (text.starts_with("refs/convert/")) from = 13;
  return std::min(text.find('/', from), text.size());
}

}  // namespace

HubPlace hub_place(const std::string& url) {
  HubPlace place{"models", {}, "main", {}};
  std::string_view rest = std::string_view(url).substr(5);
  for (const char* kind : {"models", "datasets", "spaces", "kernels", "buckets"}) {
    if (rest.starts_with(cat(kind, '/'))) {
      place.kind = kind;
      rest.remove_prefix(place.kind.size() + 1);
      break;
    }
  }
  if (place.is_bucket()) place.revision.clear();
  const std::size_t org = rest.find('/');
  const std::size_t name = org == std::string_view::npos ? org : rest.find_first_of("/@", org + 1);
  place.repo = rest.substr(0, name);
  if (org == 0 || org == std::string_view::npos || place.repo.size() == org + 1 ||
      place.repo.find('@') != std::string::npos) {
    throw Error(ErrorCode::kUsage, escape(url), ": does not name a ",
                place.is_bucket() ? "bucket: expected hf://buckets/org/name/path"
                                  : "repository: expected hf://org/repo[@revision]/path");
  }
  rest.remove_prefix(place.repo.size());
  if (rest.starts_with('@')) {
    if (place.is_bucket()) {
      throw Error(ErrorCode::kUsage, escape(url), ": names a revision, but buckets have none");
    }
    rest.remove_prefix(1);
    const std::size_t end = end_of_revision(rest);
    const auto revision = percent_decode(rest.substr(0, end), false);
    if (!revision || revision->empty())
      throw Error(ErrorCode::kUsage, escape(url) + ": has an @ without a revision after it");
    place.revision = *revision;
    rest.remove_prefix(end);
  }
  if (rest.starts_with('/')) place.path = rest.substr(1);
  return place;
}

std::string HubPlace::file_target() const {
  const std::string file = encode_path(path);
  if (is_bucket()) return cat(kind, '/', encode_path(repo), "/resolve/", file);
  return cat(kind == "models" ? std::string() : kind + '/', encode_path(repo), "/resolve/",
             percent_encode(revision), '/', file);
}

std::string HubPlace::tree_target(std::string_view commit) const {
  std::string target = cat("api/", kind, '/', encode_path(repo), "/tree");
  if (!is_bucket()) target += cat('/', percent_encode(commit.empty() ? revision : commit));
  // A bucket has no folders: its list takes the beginning of names.
  if (!path.empty()) target += cat('/', is_bucket() ? percent_encode(path) : encode_path(path));
  return target;
}

std::string HubPlace::revision_target() const {
  return cat("api/", kind, '/', encode_path(repo), "/revision/", percent_encode(revision));
}

}  // namespace fsdp::formats
