// SPDX-License-Identifier: Apache-2.0
#include "formats/front/open.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/url.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/names.h"
#include "formats/families/hdf5/checkpoint.h"
#include "formats/families/runs/layout.h"
#include "formats/families/runs/steps.h"
#include "formats/families/safetensors/checkpoint.h"
#include "formats/families/torch/checkpoint.h"
#include "formats/families/torch/index.h"
#include "formats/families/torch/stream.h"
#include "formats/families/trainers/accelerate.h"
#include "formats/families/trainers/deepspeed.h"
#include "formats/families/trainers/deepspeed_universal.h"
#include "formats/families/trainers/fairscale.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/torch_checkpointing.h"
#include "formats/families/trainers/torch_checkpointing_metadata.h"
#include "formats/families/trainers/trainer_folder.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Bytes read ahead at a file's start, in a store by one request: enough for headers and pickles of
// thousands of tensors.
constexpr std::uint64_t kFirstBytes = 1U << 20U;

// Limit of the near misses named in a message.
constexpr std::size_t kMaxSuggestions = 5;

// Returns the checkpoints in the folder, and the folder above if that is a folder of
// torch.distributed.checkpoint.
std::vector<std::string> near_misses(const fs::path& folder) {
  std::vector<std::string> found;
  std::vector<std::string> names = folder_at(folder)->list();
  for (const std::string& name : names) {
    if (found.size() == kMaxSuggestions) break;
    if (opens(folder / name)) found.push_back(escape((folder / name).native()));
  }
  // Stray safetensors files beside the folder are not a reason to name checkpoints above it.
  const fs::path above = in_store(folder) ? folder_of_place(folder)
                                          : fs::absolute(folder).lexically_normal().parent_path();
  if (is_folder(above) && above != folder && layout_of_folder(above) == Layout::kDcp) {
    found.push_back(escape(above.native()));
  }
  return found;
}

std::string suggestion(const std::vector<std::string>& paths) {
  if (paths.empty()) return {};
  std::string text = paths.size() == 1 ? "; the checkpoint near it: " : "; checkpoints near it: ";
  for (std::size_t i = 0; i < paths.size(); ++i) text += (i == 0 ? "" : ", ") + paths[i];
  return text;
}

std::unique_ptr<Checkpoint> open_step(const fs::path& path, const std::vector<std::string>& names,
                                      const OpenOptions& options) {
  std::vector<CheckpointPart> parts;
  std::vector<std::string> known = part_names(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CheckpointPart part{.checkpoint = open_checkpoint(path / names[i], options),
                        .name = std::move(known[i])};
    const bool folder = is_folder(path / names[i]);
    const std::size_t slash = names[i].rfind('/');
    if (folder) part.folder = names[i] + "/";
    if (!folder && slash != std::string::npos) part.folder = names[i].substr(0, slash + 1);
    part.unwrap = is_below(*part.checkpoint, part.name);
    parts.push_back(std::move(part));
  }
  return combine_checkpoints(std::move(parts), {escape(path.native()), "step", "parts"},
                             missing_model(names));
}

std::unique_ptr<Checkpoint> open_folder(const fs::path& path, const OpenOptions& options) {
  switch (layout_of_folder(path)) {
    case Layout::kDcp:
      return dcp::open_dcp(path, options.allowed_globals, *options.team);
    case Layout::kNemo:
      return dcp::open_dcp(path / dcp::kNemoWeights, options.allowed_globals, *options.team);
    case Layout::kAccelerate:
      return accelerate::open_accelerate(path, options.allowed_globals);
    case Layout::kDeepSpeed:
      return deepspeed::open_deepspeed(path);
    case Layout::kUniversal:
      return deepspeed::open_universal(path);
    case Layout::kTrainer:
      return trainer::open_trainer_folder(path);
    case Layout::kFairscale:
      return fairscale::open_fairscale(path);
    case Layout::kRankFiles:
      return open_rank_folder(path);
    case Layout::kTorchCheckpointing:
      return torch_checkpointing::open_folder(path);
    case Layout::kSafetensors:
      return safetensors::open_folder(path);
    case Layout::kTorchIndex:
      return open_torch_index(path, torch_index_of(path));
    default:
      break;
  }
  // dcp::open_dcp reports which kind of unfinished save this is.
  if (is_interrupted(path)) return dcp::open_dcp(path, options.allowed_globals, *options.team);
  if (const RunView view = look_through(path); view.is_step)
    return open_step(path, view.steps.front().parts, options);
  throw Error(ErrorCode::kUnknownFormat,
              escape(path.native()) + ": is not a checkpoint" + suggestion(near_misses(path)));
}

// Returns whether the name has a usual suffix of files that torch.save wrote.
bool is_archive_name(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEnds{".pt", ".pth", ".bin", ".ckpt"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](auto end) { return name.ends_with(end); });
}

std::unique_ptr<Checkpoint> open_file(const fs::path& path, const OpenOptions& options) {
  const std::string name = path.filename();
  // The metadata or one data file of a folder represents the folder.
  const fs::path folder = folder_of_place(path);
  if (name == dcp::kMetadataName || dcp::rank_of_data_file(name))
    return open_folder(folder, options);
  if (name == torch_checkpointing::kMetadataName &&
      torch_checkpointing::is_described_folder(folder)) {
    return open_folder(folder, options);
  }
  if (name.ends_with(".safetensors.index.json")) return safetensors::open_folder(folder, name);
  if (is_torch_index_name(name)) return open_torch_index(folder, name);
  const auto file = file_at(path);
  (void)file->read_ahead(0, kFirstBytes);
  if (is_archive_name(name)) {
    const std::uint64_t bytes = std::min(kTorchDirectoryBytes, file->size());
    (void)file->read_ahead(file->size() - bytes, bytes);
  }
  if (file->size() == 0) throw Error(ErrorCode::kEmpty, file->name() + ": has no bytes");
  switch (layout_of_file(*file)) {
    case Layout::kTorch:
      return open_saved_file(path);
    case Layout::kHdf5:
      return hdf5::open_hdf5(path);
    case Layout::kSafetensors:
      return safetensors::open_file(path);
    default:
      break;
  }
  if (name.ends_with(".safetensors"))
    return safetensors::open_file(path);  // its reader reports the error
  throw Error(
      ErrorCode::kUnknownFormat,
      file->name() + ": is not a checkpoint: neither a torch.save, safetensors nor HDF5 file");
}

[[noreturn]] void throw_not_found(const fs::path& path) {
  if (is_url(path.native()) && !in_store(path)) {
    throw Error(ErrorCode::kUnsupported,
                escape(path.native()) +
                    ": is a URL of an unknown kind of store; download it, or mount the store");
  }
  std::string hint;
  const fs::path above = folder_of_place(path);
  if (in_store(path) && !list_stored(url_of(path))->whole)
    throw Error(ErrorCode::kNotFound, cat(escape(path.native()), ": no such file; ", kCannotList));
  try {
    if (is_folder(above)) {
      std::vector<std::string> names = folder_at(above)->list();
      const std::string near = nearest(path.filename().native(), names);
      const fs::path meant = path.has_parent_path() ? above / near : fs::path(near);
      if (!near.empty()) hint = "; did you mean " + escape(meant.native()) + "?";
    }
  } catch (const Error& error) {
    // A store may refuse to list, or be unable to.
    if (!in_store(path)) throw;
  }
  throw Error(ErrorCode::kNotFound, escape(path.native()) + ": no such file or folder" + hint);
}

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const fs::path& path, const OpenOptions& options) {
  const StoreSession session;
  const PlaceKind kind = kind_of_place(path);
  if (kind == PlaceKind::kNothing) throw_not_found(path);
  return kind == PlaceKind::kFolder ? open_folder(path, options) : open_file(path, options);
}

}  // namespace fsdp::formats
