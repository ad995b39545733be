// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/texts.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "formats/bytes/base/error.h"
#include "formats/bytes/store/place.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::formats::safetensors {

std::vector<std::pair<std::string, std::string>> texts_of(const Checkpoint& source) {
  std::vector<std::pair<std::string, std::string>> out;
  if (source.description().format != "safetensors") return out;
  const std::filesystem::path path = source.description().path;
  for (const FileEntry& one : source.index().files) {
    const auto file = file_at(is_folder(path) ? path / one.name : path);
    try {
      std::ranges::move(read_header(*file, 0, Trailing::kAllowEither).metadata,
                        std::back_inserter(out));
    } catch (const Error& error) {
      throw error.in(file->name());
    }
  }
  return out;
}

}  // namespace fsdp::formats::safetensors
