// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/companions.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/telling_files.h"

namespace fsdp::formats::hf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVocabularySize = "vocab_size";
// Tokenizers of large vocabularies take some tens of MiB.
constexpr std::uint64_t kMaxCompanionBytes = 256U << 20U;
constexpr std::uint64_t kMaxConfigBytes = 16U << 20U;

std::shared_ptr<const File> within(std::shared_ptr<const File> file, std::uint64_t most) {
  if (file->size() > most) {
    throw Error(ErrorCode::kLimitSize,
                cat(file->name(), ": has ", file->size(), " bytes, at most ", most));
  }
  return file;
}

std::vector<Companion> open_files(const fs::path& path, bool (*wanted)(std::string_view)) {
  std::vector<Companion> out;
  const auto folder = folder_at(path);
  for (const std::string& name : folder->list()) {
    if (wanted(name)) out.push_back({name, path.native(), nullptr, std::nullopt});
  }
  std::ranges::sort(out, {}, &Companion::name);
  for (Companion& companion : out) {
    // A link out of the folder is refused: its target is not the model's, and would be published.
    companion.file = within(folder->open_member(companion.name),
                            companion.name == kConfigFile ? kMaxConfigBytes : kMaxCompanionBytes);
  }
  return out;
}

void read_config(const File& file, Companions& out) {
  out.config_name = file.name();
  try {
    out.config = parse_json(read_text(file, kMaxConfigBytes));
  } catch (const Error& error) {
    throw error.in(file.name());
  }
  if (out.config->as_object() == nullptr)
    throw Error(ErrorCode::kJson, file.name() + ": is not an object");
}

void rewrite_config(Companions& companions, Json::Object members) {
  companions.config = Json(std::move(members));
  for (Companion& companion : companions.files) {
    if (companion.name == kConfigFile) companion.text = to_text(*companions.config, 2) + "\n";
  }
}

}  // namespace

bool is_model_companion(std::string_view name) {
  return std::ranges::find(kModelCompanions, name) != kModelCompanions.end() ||
         name.ends_with(".jinja") || name.ends_with(".tiktoken");
}

bool is_tokenizer_file(std::string_view name) {
  constexpr std::array<std::string_view, 4> kOthers = {
      "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"};
  return is_model_companion(name) && std::ranges::find(kOthers, name) == kOthers.end();
}

Companions open_companions(const fs::path& path) {
  Companions out;
  if (!is_folder(path)) {
    out.files.push_back({kConfigFile, folder_of_place(path).native(),
                         within(file_at(path), kMaxConfigBytes), std::nullopt});
    read_config(*out.files[0].file, out);
    return out;
  }
  out.files = open_files(path, is_model_companion);
  for (const Companion& companion : out.files) {
    if (companion.name == kConfigFile) read_config(*companion.file, out);
  }
  if (!out.config)
    throw Error(ErrorCode::kNotFound, escape((path / kConfigFile).native()) + ": no such file");
  return out;
}

std::vector<Companion> open_tokenizer(const fs::path& folder) {
  return open_files(folder, is_tokenizer_file);
}

Json with_vocabulary(const Json& config, std::int64_t old_rows, std::int64_t rows) {
  Json::Object members = *config.as_object();
  bool outermost = false;
  for (auto& [key, value] : members) {
    if (key == kVocabularySize && value.as_int() != nullptr) {
      value = rows;
      outermost = true;
    }
  }
  for (auto& [key, value] : members) {
    const Json* const inside = value.find(kVocabularySize);
    if (inside != nullptr && inside->as_int() != nullptr &&
        (!outermost || *inside->as_int() == old_rows))
      value = with_vocabulary(value, old_rows, rows);
  }
  return Json(std::move(members));
}

std::optional<std::string> set_config_dtype(Companions& companions, DType dtype) {
  if (!companions.config) return std::nullopt;
  Json::Object members = *companions.config->as_object();
  const std::string name(torch_name(dtype));
  std::optional<std::string> was;
  for (auto& [key, value] : members) {
    if ((key != "dtype" && key != "torch_dtype") || value.as_string() == nullptr ||
        *value.as_string() == name)
      continue;
    was = *value.as_string();
    value = name;
  }
  if (!was) return std::nullopt;
  rewrite_config(companions, std::move(members));
  return was;
}

std::optional<std::string> drop_quantization(Companions& companions, bool any_method) {
  const Json* about = companions.config ? companions.config->find("quantization_config") : nullptr;
  const Json* method = about == nullptr ? nullptr : about->find("quant_method");
  const std::string* name = method == nullptr ? nullptr : method->as_string();
  if (name == nullptr || (!any_method && *name != "fp8" && *name != "mxfp4")) return std::nullopt;
  std::optional<std::string> was = *name;
  Json::Object members = *companions.config->as_object();
  std::erase_if(members, [](const auto& member) { return member.first == "quantization_config"; });
  rewrite_config(companions, std::move(members));
  return was;
}

void set_quantization(Companions& companions, Json about) {
  if (!companions.config) return;
  Json::Object members = *companions.config->as_object();
  std::erase_if(members, [](const auto& member) { return member.first == "quantization_config"; });
  members.emplace_back("quantization_config", std::move(about));
  rewrite_config(companions, std::move(members));
}

bool untie(Companions& companions) {
  if (!companions.config) return false;
  Json::Object members = *companions.config->as_object();
  bool changed = false;
  for (auto& [key, value] : members) {
    if (key != "tie_word_embeddings" || value.as_bool() == nullptr || !*value.as_bool()) continue;
    value = false;
    changed = true;
  }
  if (changed) rewrite_config(companions, std::move(members));
  return changed;
}

namespace {

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
    return std::ranges::any_of(
        kModelFields, [&](const char* field) { return own.config->find(field) != nullptr; });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kJson) return false;
    throw;
  }
}

}  // namespace

Companions find_companions(const fs::path& checkpoint) {
  const std::vector<fs::path> folders = folders_of(checkpoint);
  const auto own = std::ranges::find_if(folders, names_a_model);
  if (own == folders.end()) return {};
  Companions out = open_companions(*own);
  out.found = true;
  for (const fs::path& folder : folders) {
    const bool has_tokenizer = std::ranges::any_of(out.files, is_tokenizer_file, &Companion::name);
    if (has_tokenizer) break;
    if (folder == *own) continue;
    for (Companion& companion : open_tokenizer(folder)) out.files.push_back(std::move(companion));
  }
  return out;
}

}  // namespace fsdp::formats::hf
