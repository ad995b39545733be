// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/names.h"
#include "formats/families/hdf5/data.h"
#include "formats/families/safetensors/checkpoint.h"
#include "formats/families/torch/index.h"
#include "formats/families/torch/stream.h"
#include "formats/families/trainers/accelerate.h"
#include "formats/families/trainers/deepspeed.h"
#include "formats/families/trainers/deepspeed_universal.h"
#include "formats/families/trainers/fairscale.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/torch_checkpointing.h"
#include "formats/families/trainers/trainer_folder.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// A NeMo checkpoint holds a folder of Megatron-Core and, beside it, the context of the model.
bool is_nemo_folder(const fs::path& folder) {
  const auto opened = folder_at(folder);
  return opened->is_folder(std::string(dcp::kNemoContext)) &&
         opened->is_folder(std::string(dcp::kNemoWeights)) &&
         dcp::is_dcp_folder(folder / dcp::kNemoWeights);
}

}  // namespace

Layout layout_of_folder(const fs::path& folder) {
  if (dcp::is_dcp_folder(folder)) return Layout::kDcp;
  if (is_nemo_folder(folder)) return Layout::kNemo;
  if (torch_checkpointing::is_described_folder(folder)) return Layout::kTorchCheckpointing;
  if (accelerate::is_accelerate_folder(folder)) return Layout::kAccelerate;
  if (deepspeed::is_universal_folder(folder)) return Layout::kUniversal;
  if (deepspeed::is_deepspeed_folder(folder)) return Layout::kDeepSpeed;
  if (trainer::is_trainer_folder(folder)) return Layout::kTrainer;
  if (safetensors::is_safetensors_folder(folder)) return Layout::kSafetensors;
  if (holds_torch_index(folder)) return Layout::kTorchIndex;
  if (fairscale::is_fairscale_folder(folder)) return Layout::kFairscale;
  if (is_rank_folder(folder)) return Layout::kRankFiles;
  if (torch_checkpointing::is_undescribed_folder(folder)) return Layout::kTorchCheckpointing;
  return Layout::kNothing;
}

Layout layout_of_file(const ByteSource& file) {
  switch (sniff_torch_stream(file)) {
    case TorchStream::kZip:
    case TorchStream::kLegacy:
    case TorchStream::kTar:
      return Layout::kTorch;
    case TorchStream::kOther:
      break;
  }
  // safetensors first: its header begins the file, while HDF5's signature may lie further inside.
  if (safetensors::looks_like_safetensors(file)) return Layout::kSafetensors;
  return hdf5::looks_like_hdf5(file) ? Layout::kHdf5 : Layout::kNothing;
}

bool opens(const fs::path& path) {
  try {
    const PlaceKind kind = kind_of_place(path);
    if (kind == PlaceKind::kFolder) return layout_of_folder(path) != Layout::kNothing;
    return kind == PlaceKind::kFile && layout_of_file(*file_at(path)) != Layout::kNothing;
  } catch (const std::exception&) {
    return false;  // a path that cannot be examined is not suggested
  }
}

bool is_interrupted(const fs::path& folder) {
  const std::vector<std::string> names = folder_at(folder)->list();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(".distcp") || name == ".metadata.tmp";
  });
}

bool was_checkpoint_file(const fs::path& path) {
  if (is_checkpoint_name(path.filename().native())) return true;
  try {
    const auto file = file_at(path);
    return file->size() != 0 && layout_of_file(*file) != Layout::kNothing;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace fsdp::formats
