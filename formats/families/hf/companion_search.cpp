// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/companion_search.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/no_answer.h"
#include "formats/bytes/store/place.h"

namespace fsdp::formats::hf {
namespace {

namespace fs = std::filesystem;

constexpr int kLevels = 3;  // the checkpoint, a step, and a run
constexpr std::array<const char*, 3> kModelFields = {"model_type", "architectures",
                                                     "tie_word_embeddings"};
constexpr std::array<const char*, 3> kFolders = {"", "huggingface", "tokenizer"};

fs::path around(const fs::path& folder) {
  fs::path plain = folder.lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  if (plain.empty() || plain == "." || plain.filename() == "..")
    plain = fs::absolute(plain).lexically_normal();
  return plain.has_parent_path() ? plain.parent_path() : fs::path(".");
}

std::vector<fs::path> folders_of(const fs::path& checkpoint) {
  fs::path at = is_folder(checkpoint) ? checkpoint : folder_of_place(checkpoint);
  if (in_store(checkpoint)) return {at};
  std::vector<fs::path> folders;
  for (int level = 0; level < kLevels; ++level, at = around(at)) {
    for (const char* const name : kFolders) {
      const fs::path folder = *name == '\0' ? at : at / name;
      if (is_folder(folder)) folders.push_back(folder);
    }
  }
  return folders;
}

// Returns whether a folder has a config.json of a model; other programs write a config.json too.
bool names_a_model(const fs::path& folder) {
  const fs::path path = folder / kConfigFile;
  if (!exists_at(path)) return false;
  try {
    const Companions own = open_companions(path);
    return std::any_of(kModelFields.begin(), kModelFields.end(),
                       [&](const char* field) { return own.config->find(field) != nullptr; });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kJson) return false;
    throw;
  }
}

bool has_tokenizer(const Companions& companions) {
  return std::any_of(companions.files.begin(), companions.files.end(),
                     [](const Companion& companion) { return is_tokenizer_file(companion.name); });
}

}  // namespace

Companions find_companions(const fs::path& checkpoint) {
  const std::vector<fs::path> folders = folders_of(checkpoint);
  const auto own = std::find_if(folders.begin(), folders.end(), names_a_model);
  if (own == folders.end()) return {};
  Companions out = open_companions(*own);
  out.found = true;
  for (const fs::path& folder : folders) {
    if (has_tokenizer(out)) break;
    if (folder == *own) continue;
    for (Companion& companion : open_tokenizer(folder)) out.files.push_back(std::move(companion));
  }
  return out;
}

}  // namespace fsdp::formats::hf
