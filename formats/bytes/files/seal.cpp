// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/seal.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checked_list.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kTag = "fsdp_seal";

}  // namespace

std::string sidecar_name(std::string_view file_name) {
  return cat(file_name, ".", kSealName);
}

bool is_seal_name(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
  return name == kSealName || name.ends_with(sidecar_name(""));
}

std::string seal_text(std::vector<SealedFile> files) {
  std::ranges::sort(files, {}, &SealedFile::name);
  CheckedListWriter writer(kTag);
  for (const SealedFile& file : files)
    writer.add({{"name", file.name}, {"bytes", file.bytes}, {"crc32", hex32(file.crc)}});
  return writer.finish();
}

std::uint64_t seal_bytes(std::vector<SealedFile> files) {
  return seal_text(std::move(files)).size();
}

std::vector<SealedFile> read_seal(const File& file) {
  std::vector<SealedFile> files;
  read_checked_list(kTag, file, [&](const Json& line) {
    require_members(line, {"name", "bytes", "crc32"});
    SealedFile sealed{name_member(line), count_member(line, "bytes"), crc_member(line, "crc32")};
    if (!files.empty() && files.back().name >= sealed.name) {
      throw Error(ErrorCode::kSeal, quote(sealed.name), " comes after ", quote(files.back().name),
                  ", but names must be sorted");
    }
    files.push_back(std::move(sealed));
  });
  return files;
}

}  // namespace fsdp::formats
