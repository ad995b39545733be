// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/dcp/checkpoint.h"
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

// Opens the model and the trainer's files beside `optimizer`.
std::unique_ptr<StoredCheckpoint> combined(const Listing& listing,
                                           std::optional<CheckpointPart> optimizer,
                                           const std::string& layout) {
  const fs::path& folder = listing.path();
  std::vector<std::string> names = listing.names;
  std::vector<CheckpointPart> parts;
  CheckpointPart model{.checkpoint = nullptr, .name = "model"};
  if (safetensors::is_safetensors_folder(listing)) {
    model.checkpoint = safetensors::open_folder(folder);
    std::erase_if(
        names, [](const std::string& name) { return name.ends_with(".safetensors.index.json"); });
  } else if (holds_torch_index(listing)) {
    const std::string index = torch_index_of(listing);
    model.checkpoint = open_torch_index(folder, index);
    std::erase(names, index);
  } else {
    model.checkpoint = open_saved_file(folder / *model_of(listing));
  }
  parts.push_back(std::move(model));
  if (optimizer) {
    if (!optimizer->folder.empty())
      std::erase(names, optimizer->folder.substr(0, optimizer->folder.size() - 1));
    parts.push_back(std::move(*optimizer));
  }
  for (const CheckpointPart& part : parts) {
    if (!part.folder.empty()) continue;
    for (const FileEntry& file : part.checkpoint->index().files) std::erase(names, file.name);
  }
  TrainerFiles beside = trainer_files(folder, names, false);
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), {escape(folder.native()), "trainer", layout},
                             std::move(beside.findings));
}

// Returns whether the name is that of a rank's weights, "shard-00001-model-00001-of-00001": see
// is_sharded_checkpoint of Transformers.
bool is_shard_name(const std::string& name) {
  constexpr std::string_view kForm = "shard-#####-model-#####-of-#####.safetensors";
  return std::ranges::equal(name, kForm, [](char own, char form) {
    return form == '#' ? own >= '0' && own <= '9' : own == form;
  });
}

// Returns the folder itself, as "", and those inside that are folders of
// torch.distributed.checkpoint or were to become one.
std::vector<std::string> folders_of_dcp(const Listing& listing) {
  std::vector<std::string> found;
  if (dcp::is_dcp_folder(listing)) found.emplace_back();
  for (const std::string& name : listing.names) {
    if (!listing.folder->is_folder(name)) continue;
    const Listing inside(listing.path() / name);
    if (dcp::is_dcp_folder(inside) ||
        inside.any([](const std::string& file) { return file.ends_with(".distcp"); }))
      found.push_back(name);
  }
  return found;
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
  std::optional<CheckpointPart> optimizer;
  if (const auto file = optimizer_of(listing))
    optimizer = {.checkpoint = open_saved_file(folder / *file), .name = "optimizer"};
  return combined(listing, std::move(optimizer), "huggingface");
}

bool is_distributed_folder(const Listing& folder) {
  return folder.any(is_shard_name) && !folders_of_dcp(folder).empty();
}

std::unique_ptr<StoredCheckpoint> open_distributed_folder(
    const fs::path& folder, const std::set<std::string>& allowed_globals, Team& team) {
  const Listing listing(folder);
  std::vector<CheckpointPart> optimizers;
  for (const std::string& name : folders_of_dcp(listing)) {
    auto opened = dcp::open_dcp(folder / name, allowed_globals, team);
    if (!is_below(*opened, "optimizer")) {
      if (name.empty()) return opened;  // a whole checkpoint beside other weights
      continue;
    }
    optimizers.push_back({.checkpoint = std::move(opened),
                          .name = "optimizer",
                          .unwrap = true,
                          .folder = name.empty() ? "" : name + "/"});
  }
  if (optimizers.size() != 1) return safetensors::open_folder(folder);
  return combined(listing, std::move(optimizers[0]), "distributed");
}

}  // namespace fsdp::formats::trainer
