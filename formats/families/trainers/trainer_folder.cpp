// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/trainer_folder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/no_answer.h"
#include "formats/bytes/store/place.h"
#include "formats/families/safetensors/checkpoint.h"
#include "formats/families/torch/checkpoint.h"
#include "formats/families/torch/index.h"
#include "formats/families/torch/stream.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 2> kModels = {"pytorch_model.bin", "adapter_model.bin"};
constexpr std::array<const char*, 2> kOptimizers = {"optimizer.pt", "optimizer.bin"};

bool is_torch_file(const fs::path& path) {
  try {
    return sniff_torch_stream(*file_at(path)) != TorchStream::kOther;
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return false;
  }
}

template <std::size_t count, typename Test>
std::optional<std::string> first_of(const std::array<const char*, count>& wanted,
                                    const std::vector<std::string>& names, const Test& test) {
  for (const char* name : wanted) {
    if (std::find(names.begin(), names.end(), name) != names.end() && test(name)) return name;
  }
  return std::nullopt;
}

std::optional<std::string> model_of(const std::vector<std::string>& names, const fs::path& folder) {
  return first_of(kModels, names, [&](const char* name) { return is_torch_file(folder / name); });
}

// Judges by the name only: a file that cannot be read is damaged, not absent.
std::optional<std::string> optimizer_of(const std::vector<std::string>& names,
                                        const fs::path& folder) {
  return first_of(kOptimizers, names, [&](const char* name) { return !is_folder(folder / name); });
}

}  // namespace

bool is_trainer_folder(const fs::path& folder) {
  const std::vector<std::string> names = folder_at(folder)->list();
  const bool trained = optimizer_of(names, folder) ||
                       std::any_of(names.begin(), names.end(), [&](const std::string& name) {
                         return is_trainer_file(name) && !is_folder(folder / name);
                       });
  return trained && (safetensors::is_safetensors_folder(folder) || holds_torch_index(folder) ||
                     model_of(names, folder));
}

std::unique_ptr<Checkpoint> open_trainer_folder(const fs::path& folder) {
  std::vector<std::string> names = folder_at(folder)->list();
  std::vector<CheckpointPart> parts;
  CheckpointPart model{.checkpoint = nullptr, .name = "model"};
  if (safetensors::is_safetensors_folder(folder)) {
    model.checkpoint = safetensors::open_folder(folder);
    for (const FileEntry& file : model.checkpoint->index().files) std::erase(names, file.name);
    std::erase_if(
        names, [](const std::string& name) { return name.ends_with(".safetensors.index.json"); });
  } else if (holds_torch_index(folder)) {
    const std::string index = torch_index_of(folder);
    model.checkpoint = open_torch_index(folder, index);
    for (const FileEntry& file : model.checkpoint->index().files) std::erase(names, file.name);
    std::erase(names, index);
  } else {
    const std::string file = *model_of(names, folder);
    model.checkpoint = open_saved_file(folder / file);
    std::erase(names, file);
  }
  parts.push_back(std::move(model));
  if (const auto file = optimizer_of(names, folder)) {
    parts.push_back({.checkpoint = open_saved_file(folder / *file), .name = "optimizer"});
    std::erase(names, *file);
  }
  TrainerFiles beside = trainer_files(folder, names, false);
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), {escape(folder.native()), "trainer", "huggingface"},
                             std::move(beside.findings));
}

}  // namespace fsdp::formats::trainer
