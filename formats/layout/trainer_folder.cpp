// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/trainer_folder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/file.h"
#include "formats/base/text.h"
#include "formats/layout/joined_checkpoint.h"
#include "formats/layout/safetensors_checkpoint.h"
#include "formats/layout/torch_file.h"
#include "formats/layout/torch_save.h"
#include "formats/layout/trainer_files.h"

namespace fsdp::formats::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 2> kModels = {"pytorch_model.bin", "adapter_model.bin"};
constexpr std::array<const char*, 2> kOptimizers = {"optimizer.pt", "optimizer.bin"};

bool is_torch_file(const fs::path& path) {
  try {
    return sniff_torch_stream(*File::open(path)) != TorchStream::kOther;
  } catch (const Error&) {
    return false;
  }
}

template <std::size_t count>
std::optional<std::string> first_of(const std::array<const char*, count>& wanted,
                                    const std::vector<std::string>& names, const fs::path& folder) {
  for (const char* name : wanted) {
    if (std::find(names.begin(), names.end(), name) != names.end() && is_torch_file(folder / name))
      return name;
  }
  return std::nullopt;
}

}  // namespace

bool is_trainer_folder(const fs::path& folder) {
  const std::vector<std::string> names = Directory::open(folder).list();
  const bool trained = first_of(kOptimizers, names, folder) ||
                       std::any_of(names.begin(), names.end(), [&](const std::string& name) {
                         return is_trainer_file(name) && is_torch_file(folder / name);
                       });
  return trained &&
         (safetensors::is_safetensors_folder(folder) || first_of(kModels, names, folder));
}

std::unique_ptr<Checkpoint> open_trainer_folder(const fs::path& folder) {
  std::vector<std::string> names = Directory::open(folder).list();
  std::vector<CheckpointPart> parts;
  CheckpointPart model{.checkpoint = nullptr, .name = "model", .folder = {}};
  if (safetensors::is_safetensors_folder(folder)) {
    model.checkpoint = safetensors::open_folder(folder);
    for (const FileEntry& file : model.checkpoint->index().files) std::erase(names, file.name);
    std::erase_if(
        names, [](const std::string& name) { return name.ends_with(".safetensors.index.json"); });
  } else {
    const std::string file = *first_of(kModels, names, folder);
    model.checkpoint = open_torch_save(folder / file);
    std::erase(names, file);
  }
  parts.push_back(std::move(model));
  if (const auto file = first_of(kOptimizers, names, folder)) {
    parts.push_back(
        {.checkpoint = open_torch_save(folder / *file), .name = "optimizer", .folder = {}});
    std::erase(names, *file);
  }
  for (CheckpointPart& part : trainer_parts(folder, names, false)) parts.push_back(std::move(part));
  return join_checkpoints(std::move(parts),
                          {escape(folder.native()), "trainer", "huggingface", std::nullopt, 1},
                          left_out_finding(names));
}

}  // namespace fsdp::formats::trainer
