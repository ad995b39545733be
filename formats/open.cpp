// SPDX-License-Identifier: Apache-2.0
#include "formats/open.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/base/url.h"
#include "formats/content/tensor_value.h"
#include "formats/dcp/checkpoint.h"
#include "formats/dcp/names.h"
#include "formats/files/checkpoint_names.h"
#include "formats/files/file.h"
#include "formats/hdf5/checkpoint.h"
#include "formats/hdf5/data.h"
#include "formats/safetensors/checkpoint.h"
#include "formats/store/place.h"
#include "formats/store/snapshot.h"
#include "formats/torch/checkpoint.h"
#include "formats/torch/index.h"
#include "formats/torch/stream.h"
#include "formats/trainers/accelerate.h"
#include "formats/trainers/deepspeed.h"
#include "formats/trainers/deepspeed_universal.h"
#include "formats/trainers/fairscale.h"
#include "formats/trainers/per_rank.h"
#include "formats/trainers/torch_checkpointing.h"
#include "formats/trainers/torch_checkpointing_metadata.h"
#include "formats/trainers/trainer_folder.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Of a file in a store, by one request: headers and pickles of thousands of tensors are within it.
constexpr std::uint64_t kFirstBytes = 1U << 20U;

// Near misses named in a message, at most.
constexpr std::size_t kMaxSuggestions = 5;

enum class Kind {
  kNothing,
  kDcp,
  kNemo,
  kAccelerate,
  kDeepSpeed,
  kUniversal,
  kFairscale,
  kRankFiles,
  kTorchCheckpointing,
  kTrainer,
  kSafetensors,
  kTorchIndex,
  kHdf5,
  kTorch
};

// NeMo's checkpoints hold a folder of Megatron-Core beside what the model is made from.
bool is_nemo_folder(const fs::path& folder) {
  const Directory opened = Directory::open(folder);
  return opened.is_directory(std::string(dcp::kNemoContext)) &&
         opened.is_directory(std::string(dcp::kNemoWeights)) &&
         dcp::is_dcp_folder(folder / dcp::kNemoWeights);
}

Kind kind_of_folder(const fs::path& folder) {
  if (dcp::is_dcp_folder(folder)) return Kind::kDcp;
  if (is_nemo_folder(folder)) return Kind::kNemo;
  if (torch_checkpointing::is_described_folder(folder)) return Kind::kTorchCheckpointing;
  if (accelerate::is_accelerate_folder(folder)) return Kind::kAccelerate;
  if (deepspeed::is_universal_folder(folder)) return Kind::kUniversal;
  if (deepspeed::is_deepspeed_folder(folder)) return Kind::kDeepSpeed;
  if (trainer::is_trainer_folder(folder)) return Kind::kTrainer;
  if (safetensors::is_safetensors_folder(folder)) return Kind::kSafetensors;
  if (holds_torch_index(folder)) return Kind::kTorchIndex;
  if (fairscale::is_fairscale_folder(folder)) return Kind::kFairscale;
  if (is_rank_folder(folder)) return Kind::kRankFiles;
  if (torch_checkpointing::is_undescribed_folder(folder)) return Kind::kTorchCheckpointing;
  return Kind::kNothing;
}

Kind kind_of_file(const ByteSource& file) {
  switch (sniff_torch_stream(file)) {
    case TorchStream::kZip:
    case TorchStream::kLegacy:
    case TorchStream::kTar:
      return Kind::kTorch;
    case TorchStream::kOther:
      break;
  }
  // First what the beginning shows: HDF5 is looked for all over the file.
  if (safetensors::looks_like_safetensors(file)) return Kind::kSafetensors;
  return hdf5::looks_like_hdf5(file) ? Kind::kHdf5 : Kind::kNothing;
}

// Returns whether `path` would open; ignores errors.
bool is_checkpoint(const fs::path& path) {
  try {
    const PlaceKind kind = kind_of_place(path);
    if (kind == PlaceKind::kFolder) return kind_of_folder(path) != Kind::kNothing;
    return kind == PlaceKind::kFile && kind_of_file(*File::open(path)) != Kind::kNothing;
  } catch (const std::exception&) {
    return false;  // a path that cannot be examined is not suggested
  }
}

// Returns whether a save into the folder was interrupted: data files without metadata.
bool is_interrupted(const fs::path& folder) {
  const std::vector<std::string> names = Directory::open(folder).list();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with(".distcp") || name == ".metadata.tmp";
  });
}

// Levels of folders between a run's and its checkpoints, and how much is looked at in all.
constexpr int kRunLevels = 3;
constexpr std::size_t kMaxLooked = 20'000;

// Returns whether a file of a run's folder is a checkpoint or was one: a file that lost its bytes,
// or cannot be opened, must reach the reader that says so.
bool counts_as_checkpoint(const fs::path& path) {
  if (is_checkpoint_name(path.filename().native())) return true;
  try {
    const auto file = File::open(path);
    return file->size() != 0 && kind_of_file(*file) != Kind::kNothing;
  } catch (const Error&) {
    return true;
  }
}

void find_below(const fs::path& folder, int levels, std::size_t& looked,
                std::vector<fs::path>& found) {
  std::vector<std::string> names = Directory::open(folder).list();
  std::sort(names.begin(), names.end(), natural_less);
  for (const std::string& name : names) {
    if (++looked > kMaxLooked) {
      throw Error(ErrorCode::kLimitEntries, cat(escape(folder.native()), ": more than ", kMaxLooked,
                                                " files and folders to look through"));
    }
    if (name.starts_with('.')) continue;  // also what an output is while it is written
    const fs::path inner = folder / name;
    const PlaceKind kind = kind_of_place_itself(inner);
    if (kind == PlaceKind::kFile) {
      if (counts_as_checkpoint(inner)) found.push_back(inner);
    } else if (kind == PlaceKind::kFolder) {
      if (kind_of_folder(inner) != Kind::kNothing || is_interrupted(inner)) {
        found.push_back(inner);
      } else if (levels > 1) {
        find_below(inner, levels - 1, looked, found);
      }
    }
  }
}

// Checkpoints in the folder, and the folder above.
std::vector<std::string> near_misses(const fs::path& folder) {
  std::vector<std::string> found;
  std::vector<std::string> names = Directory::open(folder).list();
  for (const std::string& name : names) {
    if (found.size() == kMaxSuggestions) break;
    if (is_checkpoint(folder / name)) found.push_back(escape((folder / name).native()));
  }
  // Stray safetensors files beside the folder are not a reason to name checkpoints above it.
  const fs::path above = in_store(folder) ? folder_of_place(folder)
                                          : fs::absolute(folder).lexically_normal().parent_path();
  if (is_folder(above) && above != folder && kind_of_folder(above) == Kind::kDcp) {
    found.push_back(escape(above.native()));
  }
  return found;
}

std::string suggestion(const std::vector<std::string>& paths) {
  if (paths.empty()) return {};
  std::string text = paths.size() == 1 ? "; this is one: " : "; these are some: ";
  for (std::size_t i = 0; i < paths.size(); ++i) text += (i == 0 ? "" : ", ") + paths[i];
  return text;
}

std::unique_ptr<Checkpoint> open_folder(const fs::path& path, const OpenOptions& options) {
  switch (kind_of_folder(path)) {
    case Kind::kDcp:
      return dcp::open_dcp(path, options.allowed_globals, options.team);
    case Kind::kNemo:
      return dcp::open_dcp(path / dcp::kNemoWeights, options.allowed_globals, options.team);
    case Kind::kAccelerate:
      return accelerate::open_accelerate(path, options.allowed_globals);
    case Kind::kDeepSpeed:
      return deepspeed::open_deepspeed(path);
    case Kind::kUniversal:
      return deepspeed::open_universal(path);
    case Kind::kTrainer:
      return trainer::open_trainer_folder(path);
    case Kind::kFairscale:
      return fairscale::open_fairscale(path);
    case Kind::kRankFiles:
      return open_rank_folder(path);
    case Kind::kTorchCheckpointing:
      return torch_checkpointing::open_folder(path);
    case Kind::kSafetensors:
      return safetensors::open_folder(path);
    case Kind::kTorchIndex:
      return open_torch_index(path, torch_index_of(path));
    default:
      break;
  }
  // Its reader tells the kind of unfinished save.
  if (is_interrupted(path)) return dcp::open_dcp(path, options.allowed_globals, options.team);
  throw Error(ErrorCode::kUnknownFormat,
              escape(path.native()) + ": is not a checkpoint" + suggestion(near_misses(path)));
}

// A file that one rank saved on its own shows which part of each tensor it holds.
std::unique_ptr<Checkpoint> open_torch_file(const fs::path& path) {
  auto checkpoint = open_torch_save(path);
  const auto& values = checkpoint->index().values;
  const bool sharded = std::any_of(values.begin(), values.end(), [&](const ValueEntry& value) {
    return special_tensor(checkpoint->value(value)) == "sharded";
  });
  if (!sharded) return checkpoint;
  const std::string name = path.filename();
  RankFiles one{name, {{0, name}}};
  for (const RankFiles& set : rank_files({name})) one.files[0].first = set.files[0].first;
  return open_rank_files(folder_of_place(path), one);
}

// What torch.save writes is called so most often.
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
  const auto file = File::open(path);
  (void)file->read_ahead(0, kFirstBytes);
  if (is_archive_name(name)) {
    const std::uint64_t bytes = std::min(kTorchDirectoryBytes, file->size());
    (void)file->read_ahead(file->size() - bytes, bytes);
  }
  if (file->size() == 0) throw Error(ErrorCode::kEmpty, file->name() + ": has no bytes");
  switch (kind_of_file(*file)) {
    case Kind::kTorch:
      return open_torch_file(path);
    case Kind::kHdf5:
      return hdf5::open_hdf5(path);
    case Kind::kSafetensors:
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
                    ": is a URL of no known kind of store; download it, or mount the store");
  }
  std::string hint;
  const fs::path above = folder_of_place(path);
  if (in_store(path) && !list_stored(url_of(path))->whole)
    throw Error(ErrorCode::kNotFound, cat(escape(path.native()), ": no such file; ", kCannotList));
  try {
    if (is_folder(above)) {
      std::vector<std::string> names = Directory::open(above).list();
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

std::vector<std::string> folders_apart(const fs::path& folder) {
  std::vector<std::string> apart;
  if (!is_folder(folder) || kind_of_folder(folder) != Kind::kSafetensors) return apart;
  std::vector<std::string> names = Directory::open(folder).list();
  std::sort(names.begin(), names.end(), natural_less);
  for (const std::string& name : names) {
    const fs::path inner = folder / name;
    if (name.starts_with('.') || kind_of_place_itself(inner) != PlaceKind::kFolder) continue;
    if (kind_of_folder(inner) != Kind::kNothing || is_interrupted(inner)) apart.push_back(name);
  }
  return apart;
}

std::vector<fs::path> checkpoints_below(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!is_folder(folder) || kind_of_folder(folder) != Kind::kNothing || is_interrupted(folder))
    return found;
  std::size_t looked = 0;
  find_below(folder, kRunLevels, looked, found);
  return found;
}

}  // namespace fsdp::formats
