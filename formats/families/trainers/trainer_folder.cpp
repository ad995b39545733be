// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats::trainer {
namespace {

namespace fs = std::filesystem;

bool is_torch_file(const fs::path& path) {
  try {
    return sniff_torch_stream(*file_at(path)) != TorchStream::kOther;
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return false;
  }
}

std::optional<std::string> model_of(const Listing& folder) {
  for (const char* name : {"pytorch_model.bin", "adapter_model.bin"}) {
    if (folder.has(name) && is_torch_file(folder.path() / name)) return name;
  }
  return std::nullopt;
}

// Judges by the name only: a file that cannot be read is damaged, not absent.
std::optional<std::string> optimizer_of(const Listing& folder) {
  for (const char* name : {"optimizer.pt", "optimizer.bin"}) {
    if (folder.has(name) && !is_folder(folder.path() / name)) return name;
  }
  return std::nullopt;
}

}  // namespace

bool is_trainer_folder(const Listing& folder) {
  const bool trained = optimizer_of(folder) || folder.any([&](const std::string& name) {
    return is_trainer_file(name) && !is_folder(folder.path() / name);
  });
  return trained && (safetensors::is_safetensors_folder(folder) || holds_torch_index(folder) ||
                     model_of(folder));
}

std::unique_ptr<StoredCheckpoint> open_trainer_folder(const fs::path& folder) {
  const Listing listing(folder);
  std::vector<std::string> names = listing.names;
  std::vector<CheckpointPart> parts;
  CheckpointPart model{.checkpoint = nullptr, .name = "model"};
  if (safetensors::is_safetensors_folder(listing)) {
    model.checkpoint = safetensors::open_folder(folder);
    for (const FileEntry& file : model.checkpoint->index().files) std::erase(names, file.name);
    std::erase_if(
        names, [](const std::string& name) { return name.ends_with(".safetensors.index.json"); });
  } else if (holds_torch_index(listing)) {
    const std::string index = torch_index_of(listing);
    model.checkpoint = open_torch_index(folder, index);
    for (const FileEntry& file : model.checkpoint->index().files) std::erase(names, file.name);
    std::erase(names, index);
  } else {
    const std::string file = *model_of(listing);
    model.checkpoint = open_saved_file(folder / file);
    std::erase(names, file);
  }
  parts.push_back(std::move(model));
  if (const auto file = optimizer_of(listing)) {
    parts.push_back({.checkpoint = open_saved_file(folder / *file), .name = "optimizer"});
    std::erase(names, *file);
  }
  TrainerFiles beside = trainer_files(folder, names, false);
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), {escape(folder.native()), "trainer", "huggingface"},
                             std::move(beside.findings));
}

}  // namespace fsdp::formats::trainer
