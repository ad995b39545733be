// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/place.h"

#include <algorithm>
#include <system_error>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/hidden_files.h"
#include "formats/bytes/store/snapshot.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using Status = fs::file_status (*)(const fs::path&, std::error_code&);

PlaceKind kind_by(Status status_of, const fs::path& path) {
  if (is_hidden(path)) return PlaceKind::kNothing;
  if (in_store(path)) return kind_in_store(path.native());
  std::error_code error;
  switch (status_of(path, error).type()) {
    case fs::file_type::none:
      throw Error(error == std::errc::not_enough_memory ? ErrorCode::kOutOfMemory : ErrorCode::kIo,
                  quote(path.native()) + ": " + error.message());
    case fs::file_type::not_found:
      return PlaceKind::kNothing;
    case fs::file_type::regular:
      return PlaceKind::kFile;
    case fs::file_type::directory:
      return PlaceKind::kFolder;
    default:
      return PlaceKind::kOther;
  }
}

// Returns the end of "s3://bucket", where the path within the store begins.
std::size_t root_end(const std::string& url) {
  const std::size_t slash = url.find('/', url.find("://") + 3);
  return std::min(slash, url.size());
}

}  // namespace

bool in_store(const fs::path& path) {
  return store_of(path.native()) != nullptr;
}

std::string url_of(const fs::path& path) {
  std::string url = path.native();
  const std::size_t root = root_end(url);
  while (url.size() > root && url.back() == '/') url.pop_back();
  return url;
}

fs::path folder_of_place(const fs::path& path) {
  if (!in_store(path)) return path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string url = url_of(path);
  const std::size_t root = root_end(url);
  return root == url.size() ? url : url_of(url.substr(0, url.rfind('/')));
}

std::string name_of_place(const fs::path& path) {
  if (in_store(path)) {
    const std::string url = url_of(path);
    return url.substr(url.rfind('/') + 1);
  }
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole.filename() : whole.parent_path().filename();
}

PlaceKind kind_of_place(const fs::path& path) {
  return kind_by(fs::status, path);
}

PlaceKind kind_of_place_itself(const fs::path& path) {
  return kind_by(fs::symlink_status, path);
}

bool is_folder(const fs::path& path) {
  return kind_of_place(path) == PlaceKind::kFolder;
}

bool is_regular(const fs::path& path) {
  return kind_of_place(path) == PlaceKind::kFile;
}

bool exists_in_store(const fs::path& path) {
  const std::string url = url_of(path);
  return find_stored(url) || kind_in_store(url) != PlaceKind::kNothing;
}

std::optional<std::uint64_t> bytes_at(const fs::path& path) {
  if (in_store(path)) {
    const auto file = find_stored(url_of(path));
    return file ? std::optional(file->bytes) : std::nullopt;
  }
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  return error ? std::nullopt : std::optional<std::uint64_t>(bytes);
}

}  // namespace fsdp::formats
